// A browser lets a page from the disk read no other one, so the search lists what it found without excerpts there.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// Options become words, which site.css keeps whole where a line ends; longer ones would not fit on a phone.
const OPTION = /((?<!\S)--?[\w.*-]{1,36}(?!\S))/;

function word(text) {
  return Object.assign(document.createElement("span"), { className: "word", textContent: text });
}

document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll(".highlight-sh pre, p code.literal, li code.literal")) {
    const texts = document.createTreeWalker(block, NodeFilter.SHOW_TEXT), nodes = [];
    while (texts.nextNode()) nodes.push(texts.currentNode);
    for (const node of nodes) {
      node.replaceWith(...node.data.split(OPTION).map((piece, at) => (at % 2 ? word(piece) : piece)));
    }
  }
});
