-- case: upper, lower and title case of all characters, with Python's mappings.
--
-- An entry of a table is { first, last, step, difference }: the difference is added to every
-- step-th character of the range.
local UPPER = {
  { 0xB5, 0xB5, 1, 743 }, { 0xE0, 0xF6, 1, -32 }, { 0xF8, 0xFE, 1, -32 }, { 0xFF, 0xFF, 1, 121 },
  { 0x101, 0x12F, 2, -1 }, { 0x131, 0x131, 1, -232 }, { 0x133, 0x137, 2, -1 },
  { 0x13A, 0x148, 2, -1 }, { 0x14B, 0x177, 2, -1 }, { 0x17A, 0x17E, 2, -1 },
  { 0x17F, 0x17F, 1, -300 }, { 0x180, 0x180, 1, 195 }, { 0x183, 0x185, 2, -1 },
  { 0x188, 0x188, 1, -1 }, { 0x18C, 0x18C, 1, -1 }, { 0x192, 0x192, 1, -1 },
  { 0x195, 0x195, 1, 97 }, { 0x199, 0x199, 1, -1 }, { 0x19A, 0x19A, 1, 163 },
  { 0x19E, 0x19E, 1, 130 }, { 0x1A1, 0x1A5, 2, -1 }, { 0x1A8, 0x1A8, 1, -1 },
  { 0x1AD, 0x1AD, 1, -1 }, { 0x1B0, 0x1B0, 1, -1 }, { 0x1B4, 0x1B6, 2, -1 },
  { 0x1B9, 0x1B9, 1, -1 }, { 0x1BD, 0x1BD, 1, -1 }, { 0x1BF, 0x1BF, 1, 56 },
  { 0x1C5, 0x1C5, 1, -1 }, { 0x1C6, 0x1C6, 1, -2 }, { 0x1C8, 0x1C8, 1, -1 },
  { 0x1C9, 0x1C9, 1, -2 }, { 0x1CB, 0x1CB, 1, -1 }, { 0x1CC, 0x1CC, 1, -2 },
  { 0x1CE, 0x1DC, 2, -1 }, { 0x1DD, 0x1DD, 1, -79 }, { 0x1DF, 0x1EF, 2, -1 },
  { 0x1F2, 0x1F2, 1, -1 }, { 0x1F3, 0x1F3, 1, -2 }, { 0x1F5, 0x1F5, 1, -1 },
  { 0x1F9, 0x21F, 2, -1 }, { 0x223, 0x233, 2, -1 }, { 0x23C, 0x23C, 1, -1 },
  { 0x23F, 0x240, 1, 10815 }, { 0x242, 0x242, 1, -1 }, { 0x247, 0x24F, 2, -1 },
  { 0x250, 0x250, 1, 10783 }, { 0x251, 0x251, 1, 10780 }, { 0x252, 0x252, 1, 10782 },
  { 0x253, 0x253, 1, -210 }, { 0x254, 0x254, 1, -206 }, { 0x256, 0x257, 1, -205 },
  { 0x259, 0x259, 1, -202 }, { 0x25B, 0x25B, 1, -203 }, { 0x25C, 0x25C, 1, 42319 },
  { 0x260, 0x260, 1, -205 }, { 0x261, 0x261, 1, 42315 }, { 0x263, 0x263, 1, -207 },
  { 0x265, 0x265, 1, 42280 }, { 0x266, 0x266, 1, 42308 }, { 0x268, 0x268, 1, -209 },
  { 0x269, 0x269, 1, -211 }, { 0x26A, 0x26A, 1, 42308 }, { 0x26B, 0x26B, 1, 10743 },
  { 0x26C, 0x26C, 1, 42305 }, { 0x26F, 0x26F, 1, -211 }, { 0x271, 0x271, 1, 10749 },
  { 0x272, 0x272, 1, -213 }, { 0x275, 0x275, 1, -214 }, { 0x27D, 0x27D, 1, 10727 },
  { 0x280, 0x280, 1, -218 }, { 0x282, 0x282, 1, 42307 }, { 0x283, 0x283, 1, -218 },
  { 0x287, 0x287, 1, 42282 }, { 0x288, 0x288, 1, -218 }, { 0x289, 0x289, 1, -69 },
  { 0x28A, 0x28B, 1, -217 }, { 0x28C, 0x28C, 1, -71 }, { 0x292, 0x292, 1, -219 },
  { 0x29D, 0x29D, 1, 42261 }, { 0x29E, 0x29E, 1, 42258 }, { 0x345, 0x345, 1, 84 },
  { 0x371, 0x373, 2, -1 }, { 0x377, 0x377, 1, -1 }, { 0x37B, 0x37D, 1, 130 },
  { 0x3AC, 0x3AC, 1, -38 }, { 0x3AD, 0x3AF, 1, -37 }, { 0x3B1, 0x3C1, 1, -32 },
  { 0x3C2, 0x3C2, 1, -31 }, { 0x3C3, 0x3CB, 1, -32 }, { 0x3CC, 0x3CC, 1, -64 },
  { 0x3CD, 0x3CE, 1, -63 }, { 0x3D0, 0x3D0, 1, -62 }, { 0x3D1, 0x3D1, 1, -57 },
  { 0x3D5, 0x3D5, 1, -47 }, { 0x3D6, 0x3D6, 1, -54 }, { 0x3D7, 0x3D7, 1, -8 },
  { 0x3D9, 0x3EF, 2, -1 }, { 0x3F0, 0x3F0, 1, -86 }, { 0x3F1, 0x3F1, 1, -80 },
  { 0x3F2, 0x3F2, 1, 7 }, { 0x3F3, 0x3F3, 1, -116 }, { 0x3F5, 0x3F5, 1, -96 },
  { 0x3F8, 0x3F8, 1, -1 }, { 0x3FB, 0x3FB, 1, -1 }, { 0x430, 0x44F, 1, -32 },
  { 0x450, 0x45F, 1, -80 }, { 0x461, 0x481, 2, -1 }, { 0x48B, 0x4BF, 2, -1 },
  { 0x4C2, 0x4CE, 2, -1 }, { 0x4CF, 0x4CF, 1, -15 }, { 0x4D1, 0x52F, 2, -1 },
  { 0x561, 0x586, 1, -48 }, { 0x10D0, 0x10FA, 1, 3008 }, { 0x10FD, 0x10FF, 1, 3008 },
  { 0x13F8, 0x13FD, 1, -8 }, { 0x1C80, 0x1C80, 1, -6254 }, { 0x1C81, 0x1C81, 1, -6253 },
  { 0x1C82, 0x1C82, 1, -6244 }, { 0x1C83, 0x1C84, 1, -6242 }, { 0x1C85, 0x1C85, 1, -6243 },
  { 0x1C86, 0x1C86, 1, -6236 }, { 0x1C87, 0x1C87, 1, -6181 }, { 0x1C88, 0x1C88, 1, 35266 },
  { 0x1D79, 0x1D79, 1, 35332 }, { 0x1D7D, 0x1D7D, 1, 3814 }, { 0x1D8E, 0x1D8E, 1, 35384 },
  { 0x1E01, 0x1E95, 2, -1 }, { 0x1E9B, 0x1E9B, 1, -59 }, { 0x1EA1, 0x1EFF, 2, -1 },
  { 0x1F00, 0x1F07, 1, 8 }, { 0x1F10, 0x1F15, 1, 8 }, { 0x1F20, 0x1F27, 1, 8 },
  { 0x1F30, 0x1F37, 1, 8 }, { 0x1F40, 0x1F45, 1, 8 }, { 0x1F51, 0x1F57, 2, 8 },
  { 0x1F60, 0x1F67, 1, 8 }, { 0x1F70, 0x1F71, 1, 74 }, { 0x1F72, 0x1F75, 1, 86 },
  { 0x1F76, 0x1F77, 1, 100 }, { 0x1F78, 0x1F79, 1, 128 }, { 0x1F7A, 0x1F7B, 1, 112 },
  { 0x1F7C, 0x1F7D, 1, 126 }, { 0x1FB0, 0x1FB1, 1, 8 }, { 0x1FBE, 0x1FBE, 1, -7205 },
  { 0x1FD0, 0x1FD1, 1, 8 }, { 0x1FE0, 0x1FE1, 1, 8 }, { 0x1FE5, 0x1FE5, 1, 7 },
  { 0x214E, 0x214E, 1, -28 }, { 0x2170, 0x217F, 1, -16 }, { 0x2184, 0x2184, 1, -1 },
  { 0x24D0, 0x24E9, 1, -26 }, { 0x2C30, 0x2C5F, 1, -48 }, { 0x2C61, 0x2C61, 1, -1 },
  { 0x2C65, 0x2C65, 1, -10795 }, { 0x2C66, 0x2C66, 1, -10792 }, { 0x2C68, 0x2C6C, 2, -1 },
  { 0x2C73, 0x2C73, 1, -1 }, { 0x2C76, 0x2C76, 1, -1 }, { 0x2C81, 0x2CE3, 2, -1 },
  { 0x2CEC, 0x2CEE, 2, -1 }, { 0x2CF3, 0x2CF3, 1, -1 }, { 0x2D00, 0x2D25, 1, -7264 },
  { 0x2D27, 0x2D27, 1, -7264 }, { 0x2D2D, 0x2D2D, 1, -7264 }, { 0xA641, 0xA66D, 2, -1 },
  { 0xA681, 0xA69B, 2, -1 }, { 0xA723, 0xA72F, 2, -1 }, { 0xA733, 0xA76F, 2, -1 },
  { 0xA77A, 0xA77C, 2, -1 }, { 0xA77F, 0xA787, 2, -1 }, { 0xA78C, 0xA78C, 1, -1 },
  { 0xA791, 0xA793, 2, -1 }, { 0xA794, 0xA794, 1, 48 }, { 0xA797, 0xA7A9, 2, -1 },
  { 0xA7B5, 0xA7C3, 2, -1 }, { 0xA7C8, 0xA7CA, 2, -1 }, { 0xA7D1, 0xA7D1, 1, -1 },
  { 0xA7D7, 0xA7D9, 2, -1 }, { 0xA7F6, 0xA7F6, 1, -1 }, { 0xAB53, 0xAB53, 1, -928 },
  { 0xAB70, 0xABBF, 1, -38864 }, { 0xFF41, 0xFF5A, 1, -32 }, { 0x10428, 0x1044F, 1, -40 },
  { 0x104D8, 0x104FB, 1, -40 }, { 0x10597, 0x105A1, 1, -39 }, { 0x105A3, 0x105B1, 1, -39 },
  { 0x105B3, 0x105B9, 1, -39 }, { 0x105BB, 0x105BC, 1, -39 }, { 0x10CC0, 0x10CF2, 1, -64 },
  { 0x118C0, 0x118DF, 1, -32 }, { 0x16E60, 0x16E7F, 1, -32 }, { 0x1E922, 0x1E943, 1, -34 },
}

local LOWER = {
  { 0xC0, 0xD6, 1, 32 }, { 0xD8, 0xDE, 1, 32 }, { 0x100, 0x12E, 2, 1 }, { 0x132, 0x136, 2, 1 },
  { 0x139, 0x147, 2, 1 }, { 0x14A, 0x176, 2, 1 }, { 0x178, 0x178, 1, -121 }, { 0x179, 0x17D, 2, 1 },
  { 0x181, 0x181, 1, 210 }, { 0x182, 0x184, 2, 1 }, { 0x186, 0x186, 1, 206 },
  { 0x187, 0x187, 1, 1 }, { 0x189, 0x18A, 1, 205 }, { 0x18B, 0x18B, 1, 1 }, { 0x18E, 0x18E, 1, 79 },
  { 0x18F, 0x18F, 1, 202 }, { 0x190, 0x190, 1, 203 }, { 0x191, 0x191, 1, 1 },
  { 0x193, 0x193, 1, 205 }, { 0x194, 0x194, 1, 207 }, { 0x196, 0x196, 1, 211 },
  { 0x197, 0x197, 1, 209 }, { 0x198, 0x198, 1, 1 }, { 0x19C, 0x19C, 1, 211 },
  { 0x19D, 0x19D, 1, 213 }, { 0x19F, 0x19F, 1, 214 }, { 0x1A0, 0x1A4, 2, 1 },
  { 0x1A6, 0x1A6, 1, 218 }, { 0x1A7, 0x1A7, 1, 1 }, { 0x1A9, 0x1A9, 1, 218 },
  { 0x1AC, 0x1AC, 1, 1 }, { 0x1AE, 0x1AE, 1, 218 }, { 0x1AF, 0x1AF, 1, 1 },
  { 0x1B1, 0x1B2, 1, 217 }, { 0x1B3, 0x1B5, 2, 1 }, { 0x1B7, 0x1B7, 1, 219 },
  { 0x1B8, 0x1B8, 1, 1 }, { 0x1BC, 0x1BC, 1, 1 }, { 0x1C4, 0x1C4, 1, 2 }, { 0x1C5, 0x1C5, 1, 1 },
  { 0x1C7, 0x1C7, 1, 2 }, { 0x1C8, 0x1C8, 1, 1 }, { 0x1CA, 0x1CA, 1, 2 }, { 0x1CB, 0x1DB, 2, 1 },
  { 0x1DE, 0x1EE, 2, 1 }, { 0x1F1, 0x1F1, 1, 2 }, { 0x1F2, 0x1F4, 2, 1 }, { 0x1F6, 0x1F6, 1, -97 },
  { 0x1F7, 0x1F7, 1, -56 }, { 0x1F8, 0x21E, 2, 1 }, { 0x220, 0x220, 1, -130 },
  { 0x222, 0x232, 2, 1 }, { 0x23A, 0x23A, 1, 10795 }, { 0x23B, 0x23B, 1, 1 },
  { 0x23D, 0x23D, 1, -163 }, { 0x23E, 0x23E, 1, 10792 }, { 0x241, 0x241, 1, 1 },
  { 0x243, 0x243, 1, -195 }, { 0x244, 0x244, 1, 69 }, { 0x245, 0x245, 1, 71 },
  { 0x246, 0x24E, 2, 1 }, { 0x370, 0x372, 2, 1 }, { 0x376, 0x376, 1, 1 }, { 0x37F, 0x37F, 1, 116 },
  { 0x386, 0x386, 1, 38 }, { 0x388, 0x38A, 1, 37 }, { 0x38C, 0x38C, 1, 64 },
  { 0x38E, 0x38F, 1, 63 }, { 0x391, 0x3A1, 1, 32 }, { 0x3A3, 0x3AB, 1, 32 }, { 0x3CF, 0x3CF, 1, 8 },
  { 0x3D8, 0x3EE, 2, 1 }, { 0x3F4, 0x3F4, 1, -60 }, { 0x3F7, 0x3F7, 1, 1 }, { 0x3F9, 0x3F9, 1, -7 },
  { 0x3FA, 0x3FA, 1, 1 }, { 0x3FD, 0x3FF, 1, -130 }, { 0x400, 0x40F, 1, 80 },
  { 0x410, 0x42F, 1, 32 }, { 0x460, 0x480, 2, 1 }, { 0x48A, 0x4BE, 2, 1 }, { 0x4C0, 0x4C0, 1, 15 },
  { 0x4C1, 0x4CD, 2, 1 }, { 0x4D0, 0x52E, 2, 1 }, { 0x531, 0x556, 1, 48 },
  { 0x10A0, 0x10C5, 1, 7264 }, { 0x10C7, 0x10C7, 1, 7264 }, { 0x10CD, 0x10CD, 1, 7264 },
  { 0x13A0, 0x13EF, 1, 38864 }, { 0x13F0, 0x13F5, 1, 8 }, { 0x1C90, 0x1CBA, 1, -3008 },
  { 0x1CBD, 0x1CBF, 1, -3008 }, { 0x1E00, 0x1E94, 2, 1 }, { 0x1E9E, 0x1E9E, 1, -7615 },
  { 0x1EA0, 0x1EFE, 2, 1 }, { 0x1F08, 0x1F0F, 1, -8 }, { 0x1F18, 0x1F1D, 1, -8 },
  { 0x1F28, 0x1F2F, 1, -8 }, { 0x1F38, 0x1F3F, 1, -8 }, { 0x1F48, 0x1F4D, 1, -8 },
  { 0x1F59, 0x1F5F, 2, -8 }, { 0x1F68, 0x1F6F, 1, -8 }, { 0x1F88, 0x1F8F, 1, -8 },
  { 0x1F98, 0x1F9F, 1, -8 }, { 0x1FA8, 0x1FAF, 1, -8 }, { 0x1FB8, 0x1FB9, 1, -8 },
  { 0x1FBA, 0x1FBB, 1, -74 }, { 0x1FBC, 0x1FBC, 1, -9 }, { 0x1FC8, 0x1FCB, 1, -86 },
  { 0x1FCC, 0x1FCC, 1, -9 }, { 0x1FD8, 0x1FD9, 1, -8 }, { 0x1FDA, 0x1FDB, 1, -100 },
  { 0x1FE8, 0x1FE9, 1, -8 }, { 0x1FEA, 0x1FEB, 1, -112 }, { 0x1FEC, 0x1FEC, 1, -7 },
  { 0x1FF8, 0x1FF9, 1, -128 }, { 0x1FFA, 0x1FFB, 1, -126 }, { 0x1FFC, 0x1FFC, 1, -9 },
  { 0x2126, 0x2126, 1, -7517 }, { 0x212A, 0x212A, 1, -8383 }, { 0x212B, 0x212B, 1, -8262 },
  { 0x2132, 0x2132, 1, 28 }, { 0x2160, 0x216F, 1, 16 }, { 0x2183, 0x2183, 1, 1 },
  { 0x24B6, 0x24CF, 1, 26 }, { 0x2C00, 0x2C2F, 1, 48 }, { 0x2C60, 0x2C60, 1, 1 },
  { 0x2C62, 0x2C62, 1, -10743 }, { 0x2C63, 0x2C63, 1, -3814 }, { 0x2C64, 0x2C64, 1, -10727 },
  { 0x2C67, 0x2C6B, 2, 1 }, { 0x2C6D, 0x2C6D, 1, -10780 }, { 0x2C6E, 0x2C6E, 1, -10749 },
  { 0x2C6F, 0x2C6F, 1, -10783 }, { 0x2C70, 0x2C70, 1, -10782 }, { 0x2C72, 0x2C72, 1, 1 },
  { 0x2C75, 0x2C75, 1, 1 }, { 0x2C7E, 0x2C7F, 1, -10815 }, { 0x2C80, 0x2CE2, 2, 1 },
  { 0x2CEB, 0x2CED, 2, 1 }, { 0x2CF2, 0x2CF2, 1, 1 }, { 0xA640, 0xA66C, 2, 1 },
  { 0xA680, 0xA69A, 2, 1 }, { 0xA722, 0xA72E, 2, 1 }, { 0xA732, 0xA76E, 2, 1 },
  { 0xA779, 0xA77B, 2, 1 }, { 0xA77D, 0xA77D, 1, -35332 }, { 0xA77E, 0xA786, 2, 1 },
  { 0xA78B, 0xA78B, 1, 1 }, { 0xA78D, 0xA78D, 1, -42280 }, { 0xA790, 0xA792, 2, 1 },
  { 0xA796, 0xA7A8, 2, 1 }, { 0xA7AA, 0xA7AA, 1, -42308 }, { 0xA7AB, 0xA7AB, 1, -42319 },
  { 0xA7AC, 0xA7AC, 1, -42315 }, { 0xA7AD, 0xA7AD, 1, -42305 }, { 0xA7AE, 0xA7AE, 1, -42308 },
  { 0xA7B0, 0xA7B0, 1, -42258 }, { 0xA7B1, 0xA7B1, 1, -42282 }, { 0xA7B2, 0xA7B2, 1, -42261 },
  { 0xA7B3, 0xA7B3, 1, 928 }, { 0xA7B4, 0xA7C2, 2, 1 }, { 0xA7C4, 0xA7C4, 1, -48 },
  { 0xA7C5, 0xA7C5, 1, -42307 }, { 0xA7C6, 0xA7C6, 1, -35384 }, { 0xA7C7, 0xA7C9, 2, 1 },
  { 0xA7D0, 0xA7D0, 1, 1 }, { 0xA7D6, 0xA7D8, 2, 1 }, { 0xA7F5, 0xA7F5, 1, 1 },
  { 0xFF21, 0xFF3A, 1, 32 }, { 0x10400, 0x10427, 1, 40 }, { 0x104B0, 0x104D3, 1, 40 },
  { 0x10570, 0x1057A, 1, 39 }, { 0x1057C, 0x1058A, 1, 39 }, { 0x1058C, 0x10592, 1, 39 },
  { 0x10594, 0x10595, 1, 39 }, { 0x10C80, 0x10CB2, 1, 64 }, { 0x118A0, 0x118BF, 1, 32 },
  { 0x16E40, 0x16E5F, 1, 32 }, { 0x1E900, 0x1E921, 1, 34 },
}

-- Characters that map to several.
local UPPER_LONG = {
  [0xDF] = "\u{53}\u{53}", [0x149] = "\u{2BC}\u{4E}", [0x1F0] = "\u{4A}\u{30C}",
  [0x390] = "\u{399}\u{308}\u{301}", [0x3B0] = "\u{3A5}\u{308}\u{301}", [0x587] = "\u{535}\u{552}",
  [0x1E96] = "\u{48}\u{331}", [0x1E97] = "\u{54}\u{308}", [0x1E98] = "\u{57}\u{30A}",
  [0x1E99] = "\u{59}\u{30A}", [0x1E9A] = "\u{41}\u{2BE}", [0x1F50] = "\u{3A5}\u{313}",
  [0x1F52] = "\u{3A5}\u{313}\u{300}", [0x1F54] = "\u{3A5}\u{313}\u{301}",
  [0x1F56] = "\u{3A5}\u{313}\u{342}", [0x1F80] = "\u{1F08}\u{399}", [0x1F81] = "\u{1F09}\u{399}",
  [0x1F82] = "\u{1F0A}\u{399}", [0x1F83] = "\u{1F0B}\u{399}", [0x1F84] = "\u{1F0C}\u{399}",
  [0x1F85] = "\u{1F0D}\u{399}", [0x1F86] = "\u{1F0E}\u{399}", [0x1F87] = "\u{1F0F}\u{399}",
  [0x1F88] = "\u{1F08}\u{399}", [0x1F89] = "\u{1F09}\u{399}", [0x1F8A] = "\u{1F0A}\u{399}",
  [0x1F8B] = "\u{1F0B}\u{399}", [0x1F8C] = "\u{1F0C}\u{399}", [0x1F8D] = "\u{1F0D}\u{399}",
  [0x1F8E] = "\u{1F0E}\u{399}", [0x1F8F] = "\u{1F0F}\u{399}", [0x1F90] = "\u{1F28}\u{399}",
  [0x1F91] = "\u{1F29}\u{399}", [0x1F92] = "\u{1F2A}\u{399}", [0x1F93] = "\u{1F2B}\u{399}",
  [0x1F94] = "\u{1F2C}\u{399}", [0x1F95] = "\u{1F2D}\u{399}", [0x1F96] = "\u{1F2E}\u{399}",
  [0x1F97] = "\u{1F2F}\u{399}", [0x1F98] = "\u{1F28}\u{399}", [0x1F99] = "\u{1F29}\u{399}",
  [0x1F9A] = "\u{1F2A}\u{399}", [0x1F9B] = "\u{1F2B}\u{399}", [0x1F9C] = "\u{1F2C}\u{399}",
  [0x1F9D] = "\u{1F2D}\u{399}", [0x1F9E] = "\u{1F2E}\u{399}", [0x1F9F] = "\u{1F2F}\u{399}",
  [0x1FA0] = "\u{1F68}\u{399}", [0x1FA1] = "\u{1F69}\u{399}", [0x1FA2] = "\u{1F6A}\u{399}",
  [0x1FA3] = "\u{1F6B}\u{399}", [0x1FA4] = "\u{1F6C}\u{399}", [0x1FA5] = "\u{1F6D}\u{399}",
  [0x1FA6] = "\u{1F6E}\u{399}", [0x1FA7] = "\u{1F6F}\u{399}", [0x1FA8] = "\u{1F68}\u{399}",
  [0x1FA9] = "\u{1F69}\u{399}", [0x1FAA] = "\u{1F6A}\u{399}", [0x1FAB] = "\u{1F6B}\u{399}",
  [0x1FAC] = "\u{1F6C}\u{399}", [0x1FAD] = "\u{1F6D}\u{399}", [0x1FAE] = "\u{1F6E}\u{399}",
  [0x1FAF] = "\u{1F6F}\u{399}", [0x1FB2] = "\u{1FBA}\u{399}", [0x1FB3] = "\u{391}\u{399}",
  [0x1FB4] = "\u{386}\u{399}", [0x1FB6] = "\u{391}\u{342}", [0x1FB7] = "\u{391}\u{342}\u{399}",
  [0x1FBC] = "\u{391}\u{399}", [0x1FC2] = "\u{1FCA}\u{399}", [0x1FC3] = "\u{397}\u{399}",
  [0x1FC4] = "\u{389}\u{399}", [0x1FC6] = "\u{397}\u{342}", [0x1FC7] = "\u{397}\u{342}\u{399}",
  [0x1FCC] = "\u{397}\u{399}", [0x1FD2] = "\u{399}\u{308}\u{300}",
  [0x1FD3] = "\u{399}\u{308}\u{301}", [0x1FD6] = "\u{399}\u{342}",
  [0x1FD7] = "\u{399}\u{308}\u{342}", [0x1FE2] = "\u{3A5}\u{308}\u{300}",
  [0x1FE3] = "\u{3A5}\u{308}\u{301}", [0x1FE4] = "\u{3A1}\u{313}", [0x1FE6] = "\u{3A5}\u{342}",
  [0x1FE7] = "\u{3A5}\u{308}\u{342}", [0x1FF2] = "\u{1FFA}\u{399}", [0x1FF3] = "\u{3A9}\u{399}",
  [0x1FF4] = "\u{38F}\u{399}", [0x1FF6] = "\u{3A9}\u{342}", [0x1FF7] = "\u{3A9}\u{342}\u{399}",
  [0x1FFC] = "\u{3A9}\u{399}", [0xFB00] = "\u{46}\u{46}", [0xFB01] = "\u{46}\u{49}",
  [0xFB02] = "\u{46}\u{4C}", [0xFB03] = "\u{46}\u{46}\u{49}", [0xFB04] = "\u{46}\u{46}\u{4C}",
  [0xFB05] = "\u{53}\u{54}", [0xFB06] = "\u{53}\u{54}", [0xFB13] = "\u{544}\u{546}",
  [0xFB14] = "\u{544}\u{535}", [0xFB15] = "\u{544}\u{53B}", [0xFB16] = "\u{54E}\u{546}",
  [0xFB17] = "\u{544}\u{53D}",
}

local LOWER_LONG = {
  [0x130] = "\u{69}\u{307}",
}

-- Characters whose title case is not their upper case.
local TITLE = {
  [0xDF] = "\u{53}\u{73}", [0x1C4] = "\u{1C5}", [0x1C5] = "\u{1C5}", [0x1C6] = "\u{1C5}",
  [0x1C7] = "\u{1C8}", [0x1C8] = "\u{1C8}", [0x1C9] = "\u{1C8}", [0x1CA] = "\u{1CB}",
  [0x1CB] = "\u{1CB}", [0x1CC] = "\u{1CB}", [0x1F1] = "\u{1F2}", [0x1F2] = "\u{1F2}",
  [0x1F3] = "\u{1F2}", [0x587] = "\u{535}\u{582}", [0x10D0] = "\u{10D0}", [0x10D1] = "\u{10D1}",
  [0x10D2] = "\u{10D2}", [0x10D3] = "\u{10D3}", [0x10D4] = "\u{10D4}", [0x10D5] = "\u{10D5}",
  [0x10D6] = "\u{10D6}", [0x10D7] = "\u{10D7}", [0x10D8] = "\u{10D8}", [0x10D9] = "\u{10D9}",
  [0x10DA] = "\u{10DA}", [0x10DB] = "\u{10DB}", [0x10DC] = "\u{10DC}", [0x10DD] = "\u{10DD}",
  [0x10DE] = "\u{10DE}", [0x10DF] = "\u{10DF}", [0x10E0] = "\u{10E0}", [0x10E1] = "\u{10E1}",
  [0x10E2] = "\u{10E2}", [0x10E3] = "\u{10E3}", [0x10E4] = "\u{10E4}", [0x10E5] = "\u{10E5}",
  [0x10E6] = "\u{10E6}", [0x10E7] = "\u{10E7}", [0x10E8] = "\u{10E8}", [0x10E9] = "\u{10E9}",
  [0x10EA] = "\u{10EA}", [0x10EB] = "\u{10EB}", [0x10EC] = "\u{10EC}", [0x10ED] = "\u{10ED}",
  [0x10EE] = "\u{10EE}", [0x10EF] = "\u{10EF}", [0x10F0] = "\u{10F0}", [0x10F1] = "\u{10F1}",
  [0x10F2] = "\u{10F2}", [0x10F3] = "\u{10F3}", [0x10F4] = "\u{10F4}", [0x10F5] = "\u{10F5}",
  [0x10F6] = "\u{10F6}", [0x10F7] = "\u{10F7}", [0x10F8] = "\u{10F8}", [0x10F9] = "\u{10F9}",
  [0x10FA] = "\u{10FA}", [0x10FD] = "\u{10FD}", [0x10FE] = "\u{10FE}", [0x10FF] = "\u{10FF}",
  [0x1F80] = "\u{1F88}", [0x1F81] = "\u{1F89}", [0x1F82] = "\u{1F8A}", [0x1F83] = "\u{1F8B}",
  [0x1F84] = "\u{1F8C}", [0x1F85] = "\u{1F8D}", [0x1F86] = "\u{1F8E}", [0x1F87] = "\u{1F8F}",
  [0x1F88] = "\u{1F88}", [0x1F89] = "\u{1F89}", [0x1F8A] = "\u{1F8A}", [0x1F8B] = "\u{1F8B}",
  [0x1F8C] = "\u{1F8C}", [0x1F8D] = "\u{1F8D}", [0x1F8E] = "\u{1F8E}", [0x1F8F] = "\u{1F8F}",
  [0x1F90] = "\u{1F98}", [0x1F91] = "\u{1F99}", [0x1F92] = "\u{1F9A}", [0x1F93] = "\u{1F9B}",
  [0x1F94] = "\u{1F9C}", [0x1F95] = "\u{1F9D}", [0x1F96] = "\u{1F9E}", [0x1F97] = "\u{1F9F}",
  [0x1F98] = "\u{1F98}", [0x1F99] = "\u{1F99}", [0x1F9A] = "\u{1F9A}", [0x1F9B] = "\u{1F9B}",
  [0x1F9C] = "\u{1F9C}", [0x1F9D] = "\u{1F9D}", [0x1F9E] = "\u{1F9E}", [0x1F9F] = "\u{1F9F}",
  [0x1FA0] = "\u{1FA8}", [0x1FA1] = "\u{1FA9}", [0x1FA2] = "\u{1FAA}", [0x1FA3] = "\u{1FAB}",
  [0x1FA4] = "\u{1FAC}", [0x1FA5] = "\u{1FAD}", [0x1FA6] = "\u{1FAE}", [0x1FA7] = "\u{1FAF}",
  [0x1FA8] = "\u{1FA8}", [0x1FA9] = "\u{1FA9}", [0x1FAA] = "\u{1FAA}", [0x1FAB] = "\u{1FAB}",
  [0x1FAC] = "\u{1FAC}", [0x1FAD] = "\u{1FAD}", [0x1FAE] = "\u{1FAE}", [0x1FAF] = "\u{1FAF}",
  [0x1FB2] = "\u{1FBA}\u{345}", [0x1FB3] = "\u{1FBC}", [0x1FB4] = "\u{386}\u{345}",
  [0x1FB7] = "\u{391}\u{342}\u{345}", [0x1FBC] = "\u{1FBC}", [0x1FC2] = "\u{1FCA}\u{345}",
  [0x1FC3] = "\u{1FCC}", [0x1FC4] = "\u{389}\u{345}", [0x1FC7] = "\u{397}\u{342}\u{345}",
  [0x1FCC] = "\u{1FCC}", [0x1FF2] = "\u{1FFA}\u{345}", [0x1FF3] = "\u{1FFC}",
  [0x1FF4] = "\u{38F}\u{345}", [0x1FF7] = "\u{3A9}\u{342}\u{345}", [0x1FFC] = "\u{1FFC}",
  [0xFB00] = "\u{46}\u{66}", [0xFB01] = "\u{46}\u{69}", [0xFB02] = "\u{46}\u{6C}",
  [0xFB03] = "\u{46}\u{66}\u{69}", [0xFB04] = "\u{46}\u{66}\u{6C}", [0xFB05] = "\u{53}\u{74}",
  [0xFB06] = "\u{53}\u{74}", [0xFB13] = "\u{544}\u{576}", [0xFB14] = "\u{544}\u{565}",
  [0xFB15] = "\u{544}\u{56B}", [0xFB16] = "\u{54E}\u{576}", [0xFB17] = "\u{544}\u{56D}",
}

local CHARACTER = "[\0-\x7F\xC2-\xFD][\x80-\xBF]*"

local case = {}
local maps -- upper, lower, title: character -> text; built for the first text that is not ASCII

local function fill(map, rows, long)
  for _, row in ipairs(rows) do
    for c = row[1], row[2], row[3] do map[utf8.char(c)] = utf8.char(c + row[4]) end
  end
  for c, t in pairs(long) do map[utf8.char(c)] = t end
  return map
end

local function get_maps()
  if maps then return maps end
  maps = { upper = {}, lower = {}, title = {} }
  for c = 97, 122 do
    maps.upper[string.char(c)], maps.lower[string.char(c - 32)] = string.char(c - 32),
      string.char(c)
  end
  fill(maps.upper, UPPER, UPPER_LONG)
  fill(maps.lower, LOWER, LOWER_LONG)
  for c, t in pairs(maps.upper) do maps.title[c] = t end
  for c, t in pairs(TITLE) do maps.title[utf8.char(c)] = t end
  return maps
end

local function is_ascii(t) return not t:find "[\x80-\xFF]" end

local function is_cased(c)
  local m = get_maps()
  return m.upper[c] ~= nil or m.lower[c] ~= nil
end
case.is_cased = is_cased

function case.upper(t)
  if is_ascii(t) then return t:upper() end
  return (t:gsub(CHARACTER, get_maps().upper))
end

--- A capital sigma at the end of a word becomes the final sigma.
local function final_sigma(t)
  local out, word = {}, false
  for c in t:gmatch(CHARACTER) do
    out[#out + 1] = c
  end
  for i, c in ipairs(out) do
    if c == "Σ" and word and not (out[i + 1] and is_cased(out[i + 1])) then out[i] = "ς" end
    word = is_cased(c)
  end
  return table.concat(out)
end

function case.lower(t)
  if is_ascii(t) then return t:lower() end
  if t:find("Σ", 1, true) then t = final_sigma(t) end
  return (t:gsub(CHARACTER, get_maps().lower))
end

function case.capitalize(t)
  local first = t:match(CHARACTER)
  if not first then return t end
  return (get_maps().title[first] or first) .. case.lower(t):sub(#case.lower(first) + 1)
end

--- The first letter of each run of letters in title case, the others in lower case.
function case.title(t)
  local m, inside = get_maps(), false
  t = t:find("Σ", 1, true) and final_sigma(t) or t
  return (t:gsub(CHARACTER, function(c)
    local was = inside
    inside = is_cased(c)
    return was and m.lower[c] or not was and m.title[c] or c
  end))
end

--- For comparisons that ignore case.
function case.fold(t)
  if is_ascii(t) then return t:lower() end
  local m = get_maps()
  return (t:gsub(CHARACTER, m.upper):gsub(CHARACTER, m.lower))
end

function case.swap(t)
  local m = get_maps()
  return (t:gsub(CHARACTER, function(c) return m.lower[c] or m.upper[c] end))
end

--- Has the text cased letters, all of them in this case? which: "upper" or "lower".
function case.is(t, which)
  local m, some = get_maps(), false
  local other = which == "upper" and m.upper or m.lower
  local own = which == "upper" and m.lower or m.upper
  for c in t:gmatch(CHARACTER) do
    if own[c] then some = true elseif other[c] then return false end
  end
  return some
end

return case
