# tiles.awk - the list of scripts/engine/tiles.lua as C: the defaults and ranges of pe_metal_tiles.
# Fields of a line: { "name", default, least, most, "..." },
BEGIN {
  print "#include \"kernels/metal/table.h\"\n\n#include <stddef.h>\n"
  print "const pe_metal_tile pe_metal_tile_list[] = {"
}
/^  \{ "/ {
  gsub(/[",]/, " ")
  printf "    {\"%s\", offsetof(pe_metal_tiles, %s), %s, %s, %s},\n", $2, $2, $3, $4, $5
  values = values "    ." $2 " = " $3 ",\n"
  count++
}
END {
  print "};\nconst int pe_metal_tile_count = " count ";"
  print "const pe_metal_tiles pe_metal_tiles_default = {\n" values "};"
  print "_Static_assert(sizeof(pe_metal_tiles) == " count " * sizeof(int32_t), \"all are listed\");"
}
