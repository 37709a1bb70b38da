// Runs the browser's client in node: node --experimental-websocket node.js ADDRESS [PROMPT CALL]
//
// It stands in for the page. Each change of an element is printed as one line of JSON, {"id", "text"}; with CALL, that
// function of the client is called once three tokens of an answer to PROMPT, in place of its own prompt, have come.
// It ends when the page shows the statistics.
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const vm = require('node:vm');

const [address, prompt, call] = process.argv.slice(2);
const elements = new Map();

class Element {
  constructor(id) {
    this.id = id;
    this.changes = 0;
  }

  set textContent(text) {
    this.changes += 1;
    console.info(JSON.stringify({ id: this.id, text }));
    if (this.id === 'output' && this.changes === 3 && call) {
      vm.runInThisContext(`${call}()`);
    }
    if (this.id === 'stats') {
      vm.runInThisContext('socket.close()');
    }
  }
}

globalThis.document = {
  getElementById(id) {
    if (!elements.has(id)) {
      elements.set(id, new Element(id));
    }
    return elements.get(id);
  },
};
console.log = (...words) => console.info(JSON.stringify({ id: 'console', text: words.join(' ') }));

const file = path.join(__dirname, 'browser.js');
let source = fs.readFileSync(file, 'utf8').replace('wss://example.com/generate', address);
if (prompt) {
  source = source.replaceAll(/prompt: '.*'/g, `prompt: ${JSON.stringify(prompt)}`);
}
vm.runInThisContext(source, { filename: file });
