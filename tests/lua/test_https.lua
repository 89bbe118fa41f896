-- https through curl: certificates, checked addresses, redirects and limits, against a TLS server.
local Media = require "engine.media"
local async = require "lib.async"
local client = require "http.client"
local pictures = require "picture_files"
local test = require("harness").test
local uv = require "luv"

local function write(path, text)
  local file <close> = assert(io.open(path, "wb"))
  file:write(text)
end

local function free_port()
  local socket = uv.new_tcp()
  assert(socket:bind("127.0.0.1", 0))
  local port = socket:getsockname().port
  socket:close()
  return port
end

--- A folder with a certificate for localhost and whole responses, which `openssl s_server -HTTP`
--- sends as they are.
local function make_site()
  local folder = assert(uv.fs_mkdtemp(uv.os_tmpdir() .. "/https-XXXXXX"))
  assert(os.execute(("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
    .. "-addext subjectAltName=DNS:localhost -keyout %s/key.pem -out %s/cert.pem 2>/dev/null")
    :format(folder, folder)))
  local function response(name, head, body)
    write(folder .. "/" .. name, "HTTP/1.1 " .. head .. "\r\n\r\n" .. (body or ""))
  end
  response("cat.png", "200 OK\r\ncontent-type: image/png", pictures.file "own_rgb8.png")
  response("chunks", "200 OK\r\ntransfer-encoding: chunked", "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
  response("moved", "302 Found\r\nlocation: cat.png\r\ncontent-length: 0")
  response("inside", "302 Found\r\nlocation: http://127.0.0.1:1/x\r\ncontent-length: 0")
  response("large", "200 OK", ("x"):rep(3 << 20))
  return folder
end

--- Runs fn(base URL, folder) in a task beside a TLS server on localhost.
local function with_tls(t, fn)
  local folder, port = make_site(), free_port()
  local out = uv.new_pipe(false)
  local process = assert(uv.spawn("openssl", { args = { "s_server", "-HTTP", "-accept",
    "127.0.0.1:" .. port, "-cert", "cert.pem", "-key", "key.pem" }, cwd = folder,
    stdio = { nil, out, nil } }, function() end))
  async.run(t.expect(function()
    async.await(function(resume)
      local said = ""
      out:read_start(function(_, bytes)
        said = said .. (bytes or "")
        if said:find "ACCEPT" or not bytes then resume() end
      end)
    end)
    uv.os_setenv("CURL_CA_BUNDLE", folder .. "/cert.pem")
    local ok, err = xpcall(fn, debug.traceback, "https://localhost:" .. port, folder)
    uv.os_unsetenv "CURL_CA_BUNDLE"
    process:kill "sigkill"
    process:close()
    out:close()
    if not ok then t.fail(err) end
  end))
end

test("responses", function(t)
  with_tls(t, function(base)
    local answer = assert(client.request { url = base .. "/chunks", headers = { accept = "*/*" } })
    t.eq({ answer.status, answer.body }, { 200, "abcde" })
    local pieces, size = 0, 0
    assert(client.request { url = base .. "/large", on_data = function(bytes)
      pieces, size = pieces + 1, size + #bytes
      return size < 1 << 20 -- ends curl in the middle of the body
    end })
    t.ok(pieces > 1 and size >= 1 << 20 and size < 3 << 20, tostring(size))
    t.raises(function() client.request { url = base, headers = { a = "b\r\nc: d" } } end,
      "control character")
  end)
end)

test("certificates and addresses are checked", function(t)
  with_tls(t, function(base)
    local port = base:match "%d+$"
    local wrong_name = "https://127.0.0.1:" .. port .. "/chunks"
    t.match(t.fails("io", client.request { url = wrong_name }).message, "certificate")
    uv.os_unsetenv "CURL_CA_BUNDLE"
    t.match(t.fails("io", client.request { url = base .. "/chunks" }).message, "certificate")
    local asked
    local err = t.fails("io", client.request { url = base .. "/chunks", allow = function(address)
      asked = address
      return false
    end })
    t.match(err.message, "is not allowed")
    t.match(asked, "^[%x.:]+$")
    t.match(t.fails("io", client.request { url = "https://127.0.0.1:1/" }).message, "onnect")
  end)
end)

test("pictures: redirects and sizes", function(t)
  with_tls(t, function(base)
    local media <close> = assert(Media.open { children = 1, bytes = 1 << 20,
      urls = { hosts = { "localhost" }, private = true } })
    for _, name in ipairs { "/cat.png", "/moved" } do
      t.eq(#assert(media:fetch(base .. name)), #pictures.file "own_rgb8.png")
    end
    t.match(t.fails("argument", media:fetch(base .. "/inside")).message, "'127.0.0.1'")
    t.match(t.fails("limit", media:fetch(base .. "/large")).message, "limit of 1048576")
    t.match(t.fails("argument", media:fetch "https://evil.example/x").message, "not allowed")
    media.urls.private = false
    t.match(t.fails("io", media:fetch(base .. "/cat.png")).message, "is not allowed")
  end)
end)

test("a server that never responds, and no curl", function(t)
  local silent = uv.new_tcp()
  assert(silent:bind("127.0.0.1", 0))
  silent:listen(4, function() end)
  local url = ("https://localhost:%d/"):format(silent:getsockname().port)
  async.run(t.expect(function()
    t.fails("timeout", client.request { url = url, timeout_ms = 200 })
    local path = os.getenv "PATH"
    uv.os_setenv("PATH", "/nowhere")
    t.match(t.fails("io", client.request { url = url }).message, "install")
    uv.os_setenv("PATH", path)
    silent:close()
  end))
end)
