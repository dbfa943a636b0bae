"use strict";
const articles = [...document.querySelectorAll("article")];
const told = document.querySelector("output");

function toResponse(step) {
  const here = articles.indexOf(document.activeElement?.closest("article"));
  const next = here < 0 ? 0 : Math.min(Math.max(here + step, 0), articles.length - 1);
  articles[next]?.focus();
}

function toToken(token, step) {
  const tokens = [...token.parentElement.querySelectorAll(".token")];
  const next = tokens[tokens.indexOf(token) + step];
  if (next) {
    token.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}

function tell(event) {
  const token = event.target.closest?.("main .token") ?? document.activeElement?.closest("main .token");
  told.textContent = token ? `${JSON.stringify(token.textContent)}: ${token.title}` : "";
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const token = document.activeElement?.closest("main .token");
  if (event.key === "j" || event.key === "k") toResponse(event.key === "j" ? 1 : -1);
  else if (token && (event.key === "ArrowRight" || event.key === "ArrowLeft")) toToken(token, event.key === "ArrowRight" ? 1 : -1);
  else return;
  event.preventDefault();
});
document.addEventListener("focusin", tell);
document.addEventListener("mouseover", tell);
