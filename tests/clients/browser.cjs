// A real browser for the suites of the page: opens PERIGEE_URL, and runs tests in it one after the
// other. A test that fails leaves a screenshot in PERIGEE_OUT.
const fs = require("node:fs");
const { chromium } = require("playwright-core");

const url = process.env.PERIGEE_URL, out = process.env.PERIGEE_OUT;
const path = process.env.CHROMIUM ?? ["/usr/bin/chromium", "/usr/bin/chromium-browser",
  "/usr/bin/google-chrome", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"]
  .find(p => fs.existsSync(p));
let page;

const browser = {
  out,
  problems: [], // errors of scripts, and requests to elsewhere
  last: () => page.locator(".turn.assistant").last(),
  idle: () => page.waitForFunction(() => document.getElementById("send").textContent === "Send"),
  async ask(text) {
    await page.fill("#text", text);
    await page.locator("#text").press("Enter");
    await page.locator(".turn.user").last().waitFor();
    await browser.idle();
    return browser.last().locator(".body").innerText();
  },
  async set(values) {
    await page.click("#set");
    for (const [name, value] of Object.entries(values)) {
      const field = page.locator(`#settings [name=${name}]`);
      if (name === "thinking") await field.selectOption(value); else await field.fill(value);
    }
    // The settings hold when the dialog tells that it is closed, a moment after the click.
    const closed = page.evaluate(() => new Promise(done =>
      document.getElementById("settings").addEventListener("close", () => done(), { once: true })));
    await page.click("#settings .primary");
    await closed;
  },
};

function watch(problems) {
  page.on("pageerror", e => problems.push(String(e)));
  page.on("request", r => {
    const outside = !r.url().startsWith(url) && !/^(data|blob):/.test(r.url());
    if (outside) problems.push("outside: " + r.url());
  });
  page.on("console", m => {
    if (m.type() === "error" && !/503/.test(m.text())) problems.push(m.text());
  });
}

// tests: functions by name; opened(page): called before the first.
async function start(tests, opened) {
  const program = await chromium.launch({ executablePath: path, args: ["--no-sandbox"] });
  const context = await program.newContext({ viewport: { width: 1200, height: 760 },
    permissions: ["clipboard-read", "clipboard-write"] });
  page = await context.newPage();
  page.setDefaultTimeout(60000); // on a busy machine an answer may take this long
  watch(browser.problems);
  opened(page);
  let failed = 0;
  await page.goto(url + "/");
  await page.waitForFunction(() => document.querySelectorAll("#model option").length > 0);
  for (const [name, run] of Object.entries(tests)) {
    try { await run(); } catch (e) {
      failed++;
      console.log(`FAIL ${name}\n${e.stack}`);
      await page.screenshot({ path: `${out}/fail-${name}.png` }).catch(() => {});
    }
  }
  await program.close();
  console.log(`${Object.keys(tests).length - failed} passed, ${failed} failed`);
  process.exit(failed ? 1 : 0);
}

module.exports = { browser, start };
