// A browser lets a page from the disk read no other one, so the search lists what it found without excerpts there.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
