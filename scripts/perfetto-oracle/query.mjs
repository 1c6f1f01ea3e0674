// Loads a Perfetto trace into the real trace processor and asks it in SQL.
//
//   node query.mjs PACKAGE_FOLDER TRACE SQL...
//
// PACKAGE_FOLDER is what install.sh prints. Prints one line of JSON: a list with one
// {"columns": [...], "rows": [[...]]} for each SQL. Exit 1 and a sentence on stderr if the trace
// or a query is refused. Works offline: the trace processor is WebAssembly in the package.
//
// The package holds Perfetto's browser worker, so this file plays the browser: a global `self`,
// and one end of a message port over which TraceProcessorRpcStream messages go. The few messages
// needed are written and read by hand below (protos/perfetto/trace_processor/trace_processor.proto).
import { createRequire } from "node:module";
import fs from "node:fs";
import path from "node:path";

const [folder, traceFile, ...queries] = process.argv.slice(2);
if (!folder || !traceFile || queries.length === 0) {
  console.error("usage: node query.mjs PACKAGE_FOLDER TRACE SQL...");
  process.exit(2);
}

// --- protobuf ---------------------------------------------------------------------------------

function varint(value) {
  const bytes = [];
  let rest = BigInt(value);
  do {
    const low = Number(rest & 0x7fn);
    rest >>= 7n;
    bytes.push(rest ? low | 0x80 : low);
  } while (rest);
  return Buffer.from(bytes);
}
const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const bytes = (field, value) =>
  Buffer.concat([varint((field << 3) | 2), varint(value.length), value]);

class Reader {
  constructor(buffer) {
    this.buffer = buffer;
    this.at = 0;
  }
  get done() {
    return this.at >= this.buffer.length;
  }
  varint() {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = this.buffer[this.at++];
      if (byte === undefined) throw new Error("a message ends in the middle of a number");
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return BigInt.asUintN(64, value);
    }
  }
  int64() {
    return BigInt.asIntN(64, this.varint());
  }
  double() {
    const value = this.buffer.readDoubleLE(this.at);
    this.at += 8;
    return value;
  }
  bytes() {
    const length = Number(this.varint());
    const value = this.buffer.subarray(this.at, this.at + length);
    this.at += length;
    return value;
  }
  // Calls visit(field, this) for each field; what visit does not know it leaves to skip().
  fields(visit) {
    while (!this.done) {
      const key = Number(this.varint());
      if (!visit(key >> 3, this)) this.skip(key & 7);
    }
  }
  skip(wire) {
    if (wire === 0) this.varint();
    else if (wire === 1) this.at += 8;
    else if (wire === 2) this.bytes();
    else if (wire === 5) this.at += 4;
    else throw new Error(`wire type ${wire}`);
  }
}

const METHOD = { APPEND: 1, FINALIZE: 2, QUERY: 3, STATUS: 10 };
let sequence = 0;

function request(method, args = Buffer.alloc(0)) {
  const rpc = Buffer.concat([number(1, sequence++), number(2, method), args]);
  return bytes(1, rpc);
}

function responses(buffer) {
  const found = [];
  new Reader(buffer).fields((field, r) => {
    if (field !== 1) return false;
    const rpc = { error: null, method: 0, append: null, result: null, status: null };
    new Reader(r.bytes()).fields((field, r) => {
      if (field === 3) rpc.method = Number(r.varint());
      else if (field === 5) rpc.error = r.bytes().toString();
      else if (field === 201) rpc.append = r.bytes();
      else if (field === 203) rpc.result = r.bytes();
      else if (field === 210) rpc.status = r.bytes();
      else return false;
      return true;
    });
    found.push(rpc);
    return true;
  });
  return found;
}

function textField(buffer, wanted) {
  let text = "";
  new Reader(buffer).fields((field, r) => {
    if (field !== wanted) return false;
    text = r.bytes().toString();
    return true;
  });
  return text;
}

// Adds what one QueryResult message says to `table`; true once its last batch is in.
function addResult(buffer, table) {
  let last = false;
  new Reader(buffer).fields((field, r) => {
    if (field === 1) table.columns.push(r.bytes().toString());
    else if (field === 2) table.error = r.bytes().toString();
    else if (field === 3) last = addBatch(r.bytes(), table) || last;
    else return false;
    return true;
  });
  return last || table.error !== "";
}

function addBatch(buffer, table) {
  let [types, ints, doubles, blobs, texts, last] = [[], [], [], [], [], false];
  const all = (r, read, into) => {
    const packed = new Reader(r.bytes());
    while (!packed.done) into.push(read(packed));
  };
  new Reader(buffer).fields((field, r) => {
    if (field === 1) all(r, (p) => Number(p.varint()), types);
    else if (field === 2) all(r, (p) => p.int64(), ints);
    else if (field === 3) all(r, (p) => p.double(), doubles);
    else if (field === 4) blobs.push(r.bytes());
    else if (field === 5) texts = r.bytes().toString().split("\0");
    else if (field === 6) last = r.varint() !== 0n;
    else return false;
    return true;
  });
  // Integers beyond 2^53 stay exact as text.
  const int = (v) => (v >= -(2n ** 53n) && v <= 2n ** 53n ? Number(v) : v.toString());
  let [i, d, b, t] = [0, 0, 0, 0];
  for (const type of types) {
    if (type === 1) table.cells.push(null);
    else if (type === 2) table.cells.push(int(ints[i++]));
    else if (type === 3) table.cells.push(doubles[d++]);
    else if (type === 4) table.cells.push(texts[t++]);
    else if (type === 5) table.cells.push(blobs[b++].toString("hex"));
    else throw new Error(`cell type ${type}`);
  }
  return last;
}

// --- the trace processor ----------------------------------------------------------------------

const trace = fs.readFileSync(traceFile);
const packageFolder = path.resolve(folder);
const bundle = path.join(packageFolder, "engine_bundle.js");
// The bundle takes messages before its WebAssembly is ready, and crashes: a browser is slower
// with the first message. Here the port opens when it can be used.
const begin = "wasmBridge.initialize(port)";
const original = fs.readFileSync(bundle, "utf8");
const source = original.replace(begin, `wasmBridge.whenInitialized.then(() => ${begin});`);
if (source === original) {
  console.error(`${bundle} is not the version that package.json names`);
  process.exit(1);
}
// Its messages are for a browser's console; stdout is ours.
console.log = console.info = console.debug = () => {};
const chatter = [];
console.error = (...words) => chatter.push(words.join(" "));
process.on("uncaughtException", (e) => {
  process.stderr.write(`the trace processor failed: ${e?.message ?? e}\n${chatter.slice(-5).join("\n")}\n`);
  process.exit(1);
});

let wake = () => {};
const inbox = [];
const port = {
  onmessage: null,
  postMessage(data) {
    inbox.push(...responses(Buffer.from(data)));
    wake();
  },
};
process.chdir(packageFolder); // The bundle looks for the wasm here.
globalThis.self = {};
new Function("require", "__dirname", "__filename", "module", "exports", source)(
  createRequire(bundle),
  packageFolder,
  bundle,
  { exports: {} },
  {},
);
globalThis.self.onmessage({ data: { enginePort: port } });

async function next() {
  while (inbox.length === 0) await new Promise((resolve) => (wake = resolve));
  const rpc = inbox.shift();
  if (rpc.error) throw new Error(rpc.error);
  return rpc;
}
async function send(message) {
  for (let waited = 0; port.onmessage === null; waited += 10) {
    if (waited > 60_000) throw new Error("it did not start within a minute");
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  port.onmessage({ data: new Uint8Array(message) });
}

const CHUNK = 8 << 20;
for (let at = 0; at < trace.length; at += CHUNK) {
  await send(request(METHOD.APPEND, bytes(101, trace.subarray(at, at + CHUNK))));
  const { append } = await next();
  const error = append ? textField(append, 2) : "";
  if (error) throw new Error(`cannot parse ${traceFile}: ${error}`);
}
await send(request(METHOD.FINALIZE));
await next();

const answers = [];
for (const sql of queries) {
  const table = { columns: [], cells: [], error: "" };
  await send(request(METHOD.QUERY, bytes(103, bytes(1, Buffer.from(sql)))));
  for (;;) {
    const { result } = await next();
    if (result && addResult(result, table)) break;
  }
  if (table.error) {
    process.stderr.write(`${sql}\n${table.error}\n`);
    process.exit(1);
  }
  const width = table.columns.length;
  const rows = [];
  for (let at = 0; width > 0 && at < table.cells.length; at += width) {
    rows.push(table.cells.slice(at, at + width));
  }
  answers.push({ columns: table.columns, rows });
}
fs.writeFileSync(1, `${JSON.stringify(answers)}\n`);
process.exit(0);
