// SPDX-License-Identifier: MIT

// Functions of all pages, and the data that C++ wrote into them (FillPage.h).
'use strict';

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId('data').textContent);

// Creates an element. Strings become text nodes, so they are never markup.
function make(tag, className, ...content) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...content);
  return element;
}
