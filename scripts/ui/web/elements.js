// Elements, without HTML: what all scripts of the page share.
"use strict";
const $ = id => document.getElementById(id);
const h = (tag, props, ...children) => {
  const e = Object.assign(document.createElement(tag), props);
  for (const c of children.flat()) { // one by one: a call takes only so many arguments
    if (c !== null && c !== undefined && c !== false) e.append(c);
  }
  return e;
};
const button = (text, title, act) => {
  const b = h("button", { type: "button", textContent: text, title });
  b.onclick = act;
  return b;
};
// Makes these the children of an element; those that are in place stay there, with their focus.
function place(parent, elements) {
  elements.forEach((e, i) => {
    const there = parent.children[i];
    if (there !== e) parent.insertBefore(e, there ?? null);
  });
  while (parent.children.length > elements.length) parent.lastElementChild.remove();
}
// Text that does not change keeps what is selected in it.
const put = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};
