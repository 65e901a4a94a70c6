/* What the theme leaves out for keyboards and screen readers: names of landmarks, and scrolling without a mouse. */
const complete = () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  document.querySelectorAll("nav.md-nav[aria-labelledby]").forEach((nav, i) => {
    const name = nav.parentElement.querySelector(".md-ellipsis")?.textContent.trim();
    nav.setAttribute("aria-label", `Pages of ${name || `part ${i + 1}`}`);
    nav.removeAttribute("aria-labelledby");
  });
  document.querySelectorAll("nav.md-code__nav").forEach((nav, i) => nav.setAttribute("aria-label", `Code block ${i + 1}`));
  for (const part of document.querySelectorAll(".md-typeset pre, .md-typeset pre > code, .md-typeset__scrollwrap, .md-typeset p:has(> img)"))
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
};
complete();
addEventListener("resize", complete);
addEventListener("load", complete);
new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
