// The page's markdown without a browser: what it builds, and that no text makes it slow.
//   node tests/clients/test_markdown.cjs
const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");
const { run } = require("./suite.cjs");

const LIMIT_MS = 50; // of one redraw

const flat = kids => kids.flat(Infinity).filter(k => k !== null && k !== undefined && k !== false);
let drawn = 0;
const h = (tag, props, ...kids) => { drawn++; return { tag, props, kids: flat(kids) }; };
const source = fs.readFileSync(path.join(__dirname, "../../scripts/ui/web/markdown.js"), "utf8");
const { markdown, redraw } = new Function("h", "navigator", "document",
  source + "; return { markdown, redraw };")(h, {}, { createTextNode: text => text });

// Elements as text: <p>a <strong>b</strong></p>.
const html = node => typeof node === "string" ? node
  : `<${node.tag}>${node.kids.map(html).join("")}</${node.tag}>`;
const shows = (text, want) => assert.equal(markdown(text).map(html).join(""), want, text);
const text = node => typeof node === "string" ? node : node.kids.map(text).join("");

const SLOW = {
  "quotes": ">".repeat(5000) + " x", "more quotes": ">".repeat(30000) + " x",
  "spaced quotes": "> ".repeat(15000) + "x", "quoted lines": (">".repeat(50) + " x\n").repeat(600),
  "brackets": "[".repeat(30000), "links": "[a](".repeat(7500), "link ends": "[](".repeat(10000),
  "closed links": "[](a)".repeat(6000), "heading": "# " + "#".repeat(30000) + "x",
  "hashes": "# " + " #".repeat(15000) + "x", "only hashes": "#".repeat(30000),
  "stars": "**a".repeat(10000), "only stars": "*".repeat(30000), "emphasis": "*a ".repeat(10000),
  "underscores": "_a ".repeat(10000), "only underscores": "_".repeat(30000),
  "tildes": "~~a".repeat(10000), "only tildes": "~".repeat(30000) + "x",
  "mixed": "*_~[`".repeat(6000),
  "backticks": "`".repeat(30000), "runs": "`a``b".repeat(6000),
  "growing runs": Array.from({ length: 240 }, (_, i) => "`".repeat(i + 1)).join(" "),
  "dashes": "- ".repeat(15000) + "x", "rule": "-".repeat(30000) + "x",
  "table": "a|b\n-|-\n" + "|x".repeat(3000), "table rule": "a|\n" + "-|".repeat(15000) + "x",
  "table spaces": "a|\n" + " ".repeat(30000) + "x", "pipes": "a|b\n".repeat(7500),
  "deep list": Array.from({ length: 240 }, (_, i) => " ".repeat(i) + "- x").join("\n"),
  "urls": "http://a.b/".repeat(3000), "many urls": "http://a ".repeat(3000),
  "spaces": " ".repeat(30000) + "x", "space lines": (" ".repeat(99) + "\n").repeat(300),
  "fences": "```\n".repeat(7500), "nested": "**a *b ~~c __d [e](f) __ ~~ * **".repeat(900),
};

const tests = {
  inline() {
    shows("a **b** *c* _d_ __e__ ~~f~~ `g`", "<p>a <strong>b</strong> <em>c</em> <em>d</em> "
      + "<strong>e</strong> <del>f</del> <code>g</code></p>");
    shows("**a `b` c** snake_case_name 2 * 3 * 4", "<p><strong>a <code>b</code> c</strong> "
      + "snake_case_name 2 * 3 * 4</p>");
    shows("``a ` b`` `c", "<p><code>a ` b</code> `c</p>");
    shows("[a](https://b.c) [d](javascript:e) https://f.g.",
      "<p><a>a</a> d <a>https://f.g.</a></p>");
    shows("[[a](https://b)", "<p><a>[a</a></p>");
    shows("** a ** ~~ *", "<p>** a ** ~~ *</p>");
  },
  blocks() {
    shows("# A ##\n## C#\nx\ny\n\n---\n", "<h1>A</h1><h2>C#</h2><p>x<br></br>y</p><hr></hr>");
    shows("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>");
    shows("- a\n  - b\n- c", "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>");
    shows("|a|b|\n|-|:-:|\n|1|2|", "<table><thead><tr><th>a</th><th>b</th></tr></thead>"
      + "<tbody><tr><td>1</td><td>2</td></tr></tbody></table>");
    shows("```js\n# a\n```\nb", "<div><pre><code># a</code></pre><button></button></div><p>b</p>");
  },
  deep_text_is_not_lost() {
    assert.match(text(h("div", {}, markdown(">".repeat(5000) + " x"))), /x/);
    const rows = Array.from({ length: 40 }, (_, i) => " ".repeat(2 * i) + "- n" + i);
    const shown = text(h("div", {}, markdown(rows.join("\n"))));
    for (let i = 0; i < 40; i++) assert.ok(shown.includes("n" + i), "n" + i);
  },
  nothing_is_slow() {
    for (const [name, evil] of Object.entries(SLOW)) {
      let best = Infinity; // of five: a busy machine is not a slow page
      for (let i = 0; i < 5; i++) {
        const from = performance.now();
        markdown(evil);
        best = Math.min(best, performance.now() - from);
      }
      assert.ok(best < LIMIT_MS, `${name}: ${evil.length} bytes took ${best.toFixed(1)} ms`);
    }
  },
  only_changed_blocks_are_drawn() {
    const body = { childNodes: [], append(...nodes) { this.childNodes.push(...nodes); },
      get lastChild() { return { remove: () => this.childNodes.pop() }; } };
    const before = "# a\n\nb **c**\n\n".repeat(100);
    redraw(body, before + "last");
    assert.equal(body.childNodes.length, 201);
    const kept = body.childNodes.slice(0, 200);
    drawn = 0;
    redraw(body, before + "last one");
    assert.equal(drawn, 1);
    assert.deepEqual(body.childNodes.map(html), markdown(before + "last one").map(html));
    assert.ok(kept.every((node, i) => node === body.childNodes[i]));
    redraw(body, "other");
    assert.deepEqual(body.childNodes.map(html), ["<p>other</p>"]);
  },
};

run(tests);
