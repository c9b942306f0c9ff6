// SPDX-License-Identifier: MIT

// report.html and compare.html: the tables, and the code that fills the page.

// The first column names the rows, unless it has a title itself.
function tableOf({title, kind, note, head, rows}) {
  const cells = (tag, texts) =>
      texts.map((text) => make(tag, '', make('div', '', text)));
  const table = make('table');
  if (head.length)
    table.append(make('thead', '', make('tr', '', ...cells('th', head))));
  table.append(make('tbody', '', ...rows.map(([name, ...values]) => make(
      'tr', '', ...cells(head[0] ? 'td' : 'th', [name]),
      ...cells('td', values)))));
  const isWide = rows.some((row) => row.length > 2);
  return make('section', kind, make('h2', '', title),
              make('div', isWide ? 'wide' : '', table), make('p', '', note));
}

document.title = data.title;
byId('title').textContent = data.title;
byId('notes').append(...data.notes.map((note) => make('p', '', note)));
byId('charts').append(...data.charts.map(chartOf));
byId('tables').append(
    ...data.tables.filter(({rows, note}) => rows.length || note).map(tableOf));
