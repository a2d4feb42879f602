// Takes locks with the Node client "redlock" for tests/interop/main.rs.
//
// usage: node client.mjs FOLDER URL...        (FOLDER is the one that holds node_modules)
//
// Says "ready", then answers each line on stdin with one line on stdout, and ends when stdin does:
//
//   acquire NAME TTL_MS    one attempt: "held" or "refused"
//   release                of what was acquired last: "released", or "failed REASON"

import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [folder, ...urls] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const Redis = require("ioredis").default;
const { default: Redlock, ExecutionError } = require("redlock");

const nodes = urls.map((url) => new Redis(url));
// A node that is down is an event of its connection as well: without a listener ioredis prints it.
for (const node of nodes) node.on("error", () => {});
const redlock = new Redlock(nodes, { retryCount: 0 });
let lock;

async function acquire(name, ttl) {
  try {
    lock = await redlock.acquire([name], Number(ttl));
    return "held";
  } catch (err) {
    if (err instanceof ExecutionError) return "refused";
    throw err;
  }
}

async function release() {
  try {
    await lock.release();
    return "released";
  } catch (err) {
    return `failed ${err}`;
  }
}

console.log("ready");

for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...args] = line.split(" ");
  if (command === "acquire") console.log(await acquire(...args));
  else if (command === "release") console.log(await release());
  else throw new Error(`client.mjs: not understood: ${line}`);
}
process.exit(0);
