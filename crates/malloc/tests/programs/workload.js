// Garbage-collected objects, buffers outside the collector's heap, compression, worker threads and child processes.
const { createHash } = require('crypto');
const { execFileSync } = require('child_process');
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const zlib = require('zlib');

function work(seed) {
  const rows = [];
  for (let i = 0; i < 20000; i++) rows.push({ id: i, name: `row ${(i * seed) % 9973}`, list: [i, i * seed, `${i}`] });
  const text = JSON.stringify(rows);
  const packed = zlib.gzipSync(text, { level: 1 });
  if (zlib.gunzipSync(packed).toString() !== text) throw new Error('zlib');
  const groups = new Map();
  for (const row of rows) groups.set(row.name, (groups.get(row.name) || 0) + row.list[1]);
  const buffers = [];
  for (let i = 1; i < 300; i++) buffers.push(Buffer.alloc(i * 331, i));
  const hash = createHash('sha256').update(text).update(Buffer.concat(buffers));
  return `${hash.digest('hex')} ${groups.size}`;
}

async function main() {
  for (let seed = 1; seed < 5; seed++) console.log(work(seed));
  const workers = [1, 2, 3, 4].map((seed) => new Promise((resolve, reject) => {
    const worker = new Worker(__filename, { workerData: seed });
    worker.on('message', resolve);
    worker.on('error', reject);
  }));
  for (const line of await Promise.all(workers)) console.log(line);
  for (let i = 0; i < 3; i++) console.log(execFileSync('sh', ['-c', `echo child ${i}`]).toString().trim());
  const unpacked = await Promise.all([...Array(20).keys()].map((i) => new Promise((resolve, reject) => {
    const data = Buffer.alloc(100000 + i, `text ${i} `);
    zlib.brotliCompress(data, { params: { [zlib.constants.BROTLI_PARAM_QUALITY]: 3 } }, (error, packed) => (error ? reject(error)
      : zlib.brotliDecompress(packed, (e, plain) => (e || !plain.equals(data) ? reject(e || new Error('brotli')) : resolve(plain.length)))));
  })));
  console.log(unpacked.join(' '));
}

if (isMainThread) main(); else parentPort.postMessage(work(workerData));
