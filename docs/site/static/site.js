// A browser lets a page from the disk read no other one, so the search lists what it found without excerpts there.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// A line would end at a hyphen: options, names of variants and tasks become words, which site.css keeps whole. Longer ones
// would not fit on a phone.
const HYPHENATED = /((?<!\S)(?=\S*-)\S{2,37}(?!\S))/;

function word(text) {
  return Object.assign(document.createElement("span"), { className: "word", textContent: text });
}

document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll(".highlight-sh pre, p code.literal, li code.literal")) {
    const texts = document.createTreeWalker(block, NodeFilter.SHOW_TEXT), nodes = [];
    while (texts.nextNode()) nodes.push(texts.currentNode);
    for (const node of nodes) {
      node.replaceWith(...node.data.split(HYPHENATED).map((piece, at) => (at % 2 ? word(piece) : piece)));
    }
  }
});
