// The loop of the clients' tests in Node, as suite.py is that of those in Python: runs the
// functions of a table by name. The last line is "N passed, N failed".
"use strict";

async function run(tests) {
  let failed = 0;
  for (const [name, test] of Object.entries(tests)) {
    try { await test(); } catch (e) { failed++; console.log(`FAIL ${name}\n${e.stack}`); }
  }
  console.log(`${Object.keys(tests).length - failed} passed, ${failed} failed`);
  process.exit(failed ? 1 : 0);
}

module.exports = { run };
