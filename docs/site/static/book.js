// Remembers the language that was chosen last, for the page at the root of the site. Nothing leaves the browser.
const language = document.documentElement.lang.slice(0, 2);
try { localStorage.setItem("book-language", language); } catch { /* storage is off */ }

// Words of the theme that have no Korean translation.
const KOREAN = { "On this page": "이 페이지에서", Next: "다음", Previous: "이전", Home: "처음으로", "Back to top": "맨 위로", Contents: "목차" };
function translateTheme() {
  for (const element of document.querySelectorAll(".toc-title, .related-pages .title, .related-pages .context span, .back-to-top span")) {
    const words = KOREAN[element.textContent.trim()];
    if (words) element.textContent = words;
  }
}
// What scrolls sideways can be scrolled with the keyboard as well.
function focusScrollable() {
  for (const element of document.querySelectorAll("article pre, article .table-wrapper, article figure.picture")) {
    if (element.scrollWidth > element.clientWidth) element.tabIndex = 0;
  }
}
document.addEventListener("DOMContentLoaded", focusScrollable);
if (language === "ko") document.addEventListener("DOMContentLoaded", translateTheme);
