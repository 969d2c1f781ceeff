import test from 'node:test'
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { createRequire } from 'node:module'
import { cpSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { Worker } from 'node:worker_threads'
import { key, newClient, newEvent, newFolder, startService, until } from './service.mjs'

const require = createRequire(import.meta.url)
const { FileQueue } = require('../src/files.cjs')
const { encode } = require('../src/records.cjs')
const golden = new URL('../../testdata/', import.meta.url).pathname
const cut = () => 'cut'
const queues = (dir) => readdirSync(dir).filter((name) => name.startsWith('q-'))
const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

/** newQueue opens the queues of a folder as a client does. */
function newQueue (dir, tenant = '') {
  const reports = []
  return Object.assign(new FileQueue({ dir, tenant, durability: 'fsync', queueBytes: 2 ** 30, changed () {}, report: (code, detail, more) => { reports.push({ code, detail, ...more }) } }), { reports })
}

/** drain reads all events of a queue's folders. */
async function drain (queue) {
  const ids = []
  await queue.start()
  for (let batch; (batch = await queue.next(2, 1 << 20)); await queue.advance(batch.folder, batch.events)) ids.push(...batch.events.map((e) => JSON.parse(e.text).eventId))
  await queue.close()
  return ids
}

/** newDeadQueue writes a queue of records whose owner is dead. */
function newDeadQueue (dir, owner = {}, events = [newEvent({ amount: 1, timestamp: '2026-11-29T10:00:00Z' })]) {
  const folder = join(dir, 'q-00000000000000aa')
  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, 'owner'), JSON.stringify({ version: 1, token: '00000000000000aa', pid: 4194303, host: hostname(), tenant: '', ...owner }))
  writeFileSync(join(folder, '00000001.seg'), Buffer.concat([Buffer.from('MPXQ0001'), ...events.map((e) => encode(JSON.stringify(e)))]))
  return events.map((e) => e.eventId)
}

test('golden queues are read', async (t) => {
  const expected = JSON.parse(readFileSync(golden + 'queues.json', 'utf8'))
  assert.ok(Object.keys(expected).length >= 15)
  for (const [name, { events, damaged }] of Object.entries(expected)) {
    const dir = newFolder(t)
    cpSync(golden + 'queues/' + name, dir, { recursive: true })
    for (const folder of queues(dir)) utimesSync(join(dir, folder, 'owner'), 0, 0)
    const bytes = readFileSync(join(dir, queues(dir)[0], readdirSync(join(dir, queues(dir)[0])).find((n) => n.endsWith('.seg'))))
    const queue = newQueue(dir)
    assert.deepEqual(await drain(queue), events, name)
    assert.deepEqual(queue.reports.filter((r) => r.bytes).map(({ segment, offset, bytes }) => ({ segment, offset, bytes })), damaged, name)
    assert.equal(queue.reports.length, damaged.length + (name === 'missing-segment' ? 1 : 0), name)
    for (const { offset, bytes: n } of damaged) {
      const saved = readdirSync(join(dir, 'damaged'))
      assert.match(saved[0], new RegExp(`^[0-9a-f]{16}-00000001-${offset}\\.bin$`))
      assert.deepEqual(readFileSync(join(dir, 'damaged', saved[0])), bytes.subarray(offset, offset + n))
    }
    assert.deepEqual(queues(dir), [], 'an empty queue is removed')
  }
})

test('a recorded event is in the format of the queue, private, and synced before record returns', async (t) => {
  const service = await startService(t, cut)
  const client = newClient(t, service, { tenant: 't1' })
  const prototype = Object.getPrototypeOf(await (async () => { const f = await open('/dev/null'); await f.close(); return f })())
  const { datasync } = prototype
  let synced = 0
  prototype.datasync = async function () { await datasync.call(this); await wait(20); synced++ }
  t.after(() => { prototype.datasync = datasync })
  const event = newEvent({ amount: 3, timestamp: '2026-11-29T10:00:00Z' })
  await client.record(event)
  assert.equal(synced, 1, 'record did not wait for the sync')
  await Promise.all(Array.from({ length: 200 }, () => client.record(newEvent())))
  assert.ok(synced <= 4, `200 concurrent callers needed ${synced - 1} syncs`)
  const folder = join(client.options.dir, queues(client.options.dir)[0])
  const bytes = readFileSync(join(folder, '00000001.seg'))
  const text = `{"amount":3,"eventId":"${event.eventId}","feature":"api_calls","timestamp":"2026-11-29T10:00:00Z"}`
  assert.equal(bytes.subarray(0, 8).toString(), 'MPXQ0001')
  assert.deepEqual(bytes.subarray(8, 8 + 8 + text.length), encode(text))
  assert.deepEqual(JSON.parse(readFileSync(join(folder, 'owner'), 'utf8')), { version: 1, token: folder.slice(-16), pid: process.pid, host: hostname(), tenant: 't1' })
  assert.equal(statSync(folder).mode & 0o777, 0o700)
  for (const name of ['owner', '00000001.seg']) assert.equal(statSync(join(folder, name)).mode & 0o777, 0o600)
})

test('durability os does not sync', async (t) => {
  const service = await startService(t, cut)
  const client = newClient(t, service, { durability: 'os' })
  await client.record(newEvent())
  const prototype = Object.getPrototypeOf(client.queue.writer.file)
  const { datasync } = prototype
  prototype.datasync = () => assert.fail('synced')
  t.after(() => { prototype.datasync = datasync })
  await client.record(newEvent())
})

test('a queue that was taken over gets no events any more', async (t) => {
  let answer = cut
  const service = await startService(t, (...args) => answer(...args))
  const client = newClient(t, service)
  const { dir } = client.options
  const first = newEvent()
  await client.record(first)
  const [name] = queues(dir)
  renameSync(join(dir, name), join(dir, 'elsewhere')) // as another client does while this one is frozen
  const second = newEvent()
  await client.record(second)
  assert.equal(queues(dir).length, 1)
  assert.notEqual(queues(dir)[0], name)
  assert.match(readFileSync(join(dir, queues(dir)[0], '00000001.seg')).toString('latin1'), new RegExp(`"${second.eventId}"`))
  answer = () => undefined
  assert.equal((await client.flush()).remaining, 0)
  assert.deepEqual([...service.counted.keys()], [second.eventId])
})

test('a queue whose owner has another token gets no events any more', async (t) => {
  const service = await startService(t, cut)
  const client = newClient(t, service)
  await client.record(newEvent())
  const [name] = queues(client.options.dir)
  writeFileSync(join(client.options.dir, name, 'owner'), JSON.stringify({ version: 1, token: '00000000000000bb', pid: 1, host: 'h', tenant: '' }))
  await client.record(newEvent())
  assert.equal(queues(client.options.dir).length, 2)
})

test('dead queues are taken over, and others are left alone', async (t) => {
  const old = 0
  const alive = { pid: process.ppid }
  for (const [name, owner, mtime, dead] of [
    ['its process does not exist', {}, undefined, true], ['its process lives', alive, undefined, false], ['another host', { host: 'other.example' }, undefined, false],
    ['not renewed', { host: 'other.example' }, old, true], ['not renewed by a process that lives', alive, old, true], ['of another tenant', { tenant: 't2' }, old, false], ['of the same tenant', { tenant: 't1' }, undefined, true],
    ['this process before', { pid: process.pid }, (Date.now() - process.uptime() * 1000) / 1000 - 5, true], ['another thread of this process', { pid: process.pid }, undefined, false], ['no owner', undefined, undefined, true],
    ['unreadable', { token: 5 }, undefined, true]
  ]) {
    const dir = newFolder(t)
    const ids = newDeadQueue(dir, owner)
    const path = join(dir, 'q-00000000000000aa', 'owner')
    if (owner === undefined) rmSync(path)
    else if (mtime !== undefined) utimesSync(path, mtime, mtime)
    assert.deepEqual(await drain(newQueue(dir, 't1')), dead ? ids : [], name)
    assert.deepEqual(queues(dir), dead ? [] : ['q-00000000000000aa'], name)
  }
})

test('two clients that take over one queue send each event once or more, and harm nothing', async (t) => {
  const dir = newFolder(t)
  const ids = newDeadQueue(dir, {}, Array.from({ length: 50 }, () => newEvent({ amount: 1, timestamp: '2026-11-29T10:00:00Z' })))
  const clients = [newQueue(dir), newQueue(dir), newQueue(dir)]
  const found = (await Promise.all(clients.map(drain))).flat()
  assert.deepEqual([...new Set(found)].sort(), ids.sort())
  assert.deepEqual(clients.flatMap((c) => c.reports), [])
})

test('a queue that cannot be read does not stop the others', async (t) => {
  const service = await startService(t)
  const dir = newFolder(t)
  newDeadQueue(dir)
  mkdirSync(join(dir, 'q-00000000000000aa', '00000002.seg')) // a folder in place of a segment
  const client = newClient(t, service, { dir })
  const event = newEvent()
  await client.record(event)
  assert.equal((await client.flush()).remaining, 0)
  assert.ok(service.counted.has(event.eventId))
  assert.deepEqual(client.seen.errors.map((e) => e.code), ['queue_failed'])
})

test('a folder that was left half made is removed', async (t) => {
  const dir = newFolder(t)
  mkdirSync(join(dir, 'tmp-00000000000000aa'))
  mkdirSync(join(dir, 'tmp-00000000000000bb'))
  utimesSync(join(dir, 'tmp-00000000000000aa'), 0, 0)
  await drain(newQueue(dir))
  assert.deepEqual(readdirSync(dir), ['tmp-00000000000000bb'])
})

test('close leaves what remains to the next client, which sends it', async (t) => {
  let answer = cut
  const service = await startService(t, (...args) => answer(...args))
  const client = newClient(t, service, { tenant: 't1' })
  const { dir } = client.options
  const event = newEvent()
  await client.record(event)
  const left = await client.close({ deadlineMs: 20 })
  assert.equal(left.remaining, 1)
  assert.ok(left.oldestMs >= 0 && left.oldestMs < 60_000)
  assert.ok(statSync(join(dir, queues(dir)[0], 'owner')).mtimeMs < Date.now() - 100_000) // it is dead at once
  assert.deepEqual(await drain(newQueue(dir, 'another')), [], 'it is still of its tenant')
  await assert.rejects(client.record(newEvent()), { code: 'closed' })
  answer = () => undefined
  const next = newClient(t, service, { dir, tenant: 't1' })
  assert.equal((await next.flush()).remaining, 0)
  assert.deepEqual([...service.counted.keys()], [event.eventId])
  await next.close()
  assert.deepEqual(queues(dir), [])
})

test('close keeps a queue that was taken over and not read', async (t) => {
  const dir = newFolder(t)
  const ids = newDeadQueue(dir, {}, [newEvent({ amount: 1, timestamp: '2026-11-29T10:00:00Z' }), newEvent({ amount: 1, timestamp: '2026-11-29T10:00:00Z' })])
  const segment = join(dir, 'q-00000000000000aa', '00000001.seg')
  const bytes = readFileSync(segment)
  bytes[8] ^= 0x80
  bytes[10] ^= 1 // the length of the first record is damaged
  writeFileSync(segment, bytes)
  const first = newQueue(dir)
  await first.start()
  assert.equal(first.taken.length, 1)
  await first.close()
  assert.deepEqual(await drain(newQueue(dir)), ids.slice(1))
})

test('segments that are sent are deleted although the cursor cannot be written', async (t) => {
  const dir = newFolder(t)
  newDeadQueue(dir)
  const queue = newQueue(dir)
  await queue.start()
  const [folder] = queue.taken
  cpSync(folder.file(1), folder.file(2))
  folder.segments.push(2)
  mkdirSync(join(folder.path, 'cursor.tmp'))
  for (let batch; (batch = await queue.next(1, 1 << 20));) await queue.advance(batch.folder, batch.events).catch(() => {})
  assert.deepEqual(queues(dir), [])
  await queue.close()
})

test('a cursor whose segment is missing means the first one', async (t) => {
  for (const cursor of ['{"segment":1,"offset":8}', '{"segment":9,"offset":8}']) {
    const dir = newFolder(t)
    const ids = newDeadQueue(dir)
    const folder = join(dir, 'q-00000000000000aa')
    renameSync(join(folder, '00000001.seg'), join(folder, '00000003.seg'))
    writeFileSync(join(folder, 'cursor'), cursor)
    const queue = newQueue(dir)
    assert.deepEqual(await drain(queue), ids)
    assert.deepEqual(queue.reports, [])
  }
})

test('segments roll at 4 MiB, and are deleted once they are sent', async (t) => {
  const dir = newFolder(t)
  const queue = newQueue(dir)
  await queue.start()
  const texts = Array.from({ length: 80 }, (_, i) => JSON.stringify({ eventId: `e-${i}`, metadata: 'x'.repeat(60_000) }))
  await Promise.all(texts.map((text) => queue.append(text, 0, '', Infinity)))
  const folder = join(dir, queues(dir)[0])
  const segments = () => readdirSync(folder).filter((n) => n.endsWith('.seg'))
  assert.deepEqual(segments(), ['00000001.seg', '00000002.seg'])
  const size = statSync(join(folder, '00000001.seg')).size
  assert.ok(size >= 4 << 20 && size < (4 << 20) + 60_100, `${size}`)
  const read = []
  for (let batch; (batch = await queue.next(1000, 1 << 20)); await queue.advance(batch.folder, batch.events)) {
    assert.ok(batch.events.reduce((sum, e) => sum + e.text.length, 0) <= 1 << 20)
    read.push(...batch.events.map((e) => e.text))
  }
  assert.deepEqual(read, texts, 'in order')
  assert.deepEqual(segments(), ['00000002.seg'])
  assert.deepEqual(JSON.parse(readFileSync(join(folder, 'cursor'), 'utf8')), { segment: 2, offset: statSync(join(folder, '00000002.seg')).size })
  await queue.close()
})

test('a full queue waits for space until the deadline', async (t) => {
  for (const memory of [false, true]) {
    let answer = cut
    const service = await startService(t, (...args) => answer(...args))
    const client = newClient(t, service, { memory, queueBytes: 250 })
    const events = [newEvent(), newEvent(), newEvent()]
    await client.record(events[0])
    await client.record(events[1])
    await assert.rejects(client.record(newEvent(), { deadlineMs: 10 }), (err) => err.code === 'queue_full' && err.remedy !== '')
    await assert.rejects(client.record(newEvent(), { signal: AbortSignal.timeout(10) }), { name: 'TimeoutError' })
    const third = client.record(events[2])
    answer = () => undefined
    await third
    assert.equal((await client.flush()).remaining, 0)
    assert.deepEqual([...service.counted.keys()], events.map((e) => e.eventId))
  }
})

test('a deadline may be of any length, and close ends the wait for space', async (t) => {
  for (const memory of [false, true]) {
    const service = await startService(t, cut)
    const client = newClient(t, service, { memory, queueBytes: 150 })
    await client.record(newEvent())
    const refused = [Infinity, 3e9].map((deadlineMs) => assert.rejects(client.record(newEvent(), { deadlineMs }), { code: 'closed' }))
    assert.equal((await client.close({ deadlineMs: 30 })).remaining, 1)
    await Promise.all(refused)
    const other = newClient(t, await startService(t), { memory })
    await other.record(newEvent())
    assert.equal((await other.flush({ deadlineMs: Infinity })).remaining, 0)
  }
})

test('dead queues are sent in the order of their deaths, also if the disk is full', async (t) => {
  const dir = newFolder(t)
  const ids = ['bb', 'aa', 'cc'].flatMap((end, i) => {
    const [id] = newDeadQueue(dir, {})
    renameSync(join(dir, 'q-00000000000000aa'), join(dir, `q-00000000000001${end}`))
    utimesSync(join(dir, `q-00000000000001${end}`, 'owner'), i, i)
    return id
  })
  const prototype = Object.getPrototypeOf(await (async () => { const f = await open('/dev/null'); await f.close(); return f })())
  const { writeFile } = prototype
  prototype.writeFile = async () => { throw Object.assign(new Error('no space'), { code: 'ENOSPC' }) }
  t.after(() => { prototype.writeFile = writeFile })
  const queue = newQueue(dir)
  await queue.start()
  assert.equal(queue.taken.length, 3)
  for (const folder of queue.taken) assert.ok(await folder.owned())
  prototype.writeFile = writeFile
  assert.deepEqual(await drain(queue), ids)
})

test('a disk that is full for a while loses nothing, and a broken one is an error', async (t) => {
  const service = await startService(t)
  const client = newClient(t, service)
  const first = newEvent()
  await client.record(first)
  const prototype = Object.getPrototypeOf(client.queue.writer.file)
  const { write } = prototype
  t.after(() => { prototype.write = write })
  const failing = (code) => async function (bytes, offset, length, position) {
    await write.call(this, bytes, offset, Math.min(length, 20), position) // a part is written
    throw Object.assign(new Error(code), { code })
  }
  prototype.write = failing('ENOSPC')
  await assert.rejects(client.record(newEvent(), { deadlineMs: 10 }), (err) => err.code === 'queue_full' && /full/.test(err.detail))
  const second = newEvent()
  const later = client.record(second)
  await wait(30)
  prototype.write = failing('EIO')
  client.queue.writer.wake()
  await assert.rejects(later, { code: 'queue_failed' })
  prototype.write = write
  await client.record(second)
  assert.equal((await client.flush()).remaining, 0)
  assert.deepEqual([...service.counted.keys()], [first.eventId, second.eventId])
  assert.deepEqual(client.seen.errors, [])
})

test('a worker thread has a queue of its own', async (t) => {
  const service = await startService(t, cut)
  const client = newClient(t, service)
  const { dir } = client.options
  await client.record(newEvent())
  const worker = new Worker(`const { Meterplex } = require(${JSON.stringify(new URL('../index.cjs', import.meta.url).pathname)})
    const client = new Meterplex({ url: ${JSON.stringify(service.url)}, key: 'k', dir: ${JSON.stringify(dir)}, onError () {} })
    client.record({ eventId: 'of_the_worker', feature: 'api_calls', amount: 1 }).then(() => require('node:worker_threads').parentPort.postMessage('recorded'))`, { eval: true, execArgv: [] })
  await new Promise((resolve, reject) => worker.once('message', resolve).once('error', reject))
  assert.equal(queues(dir).length, 2)
  await worker.terminate()
})

const application = `
  import { Meterplex } from ${JSON.stringify(new URL('../index.mjs', import.meta.url).href)}
  const client = new Meterplex({ url: process.argv[1], key: '${key}', dir: process.argv[2], maxAgeMs: 1, retryMs: 20, onError () {} })
  let n = 0
  const record = async () => { for (;;) { const eventId = process.pid + '-' + n++; await client.record({ eventId, feature: 'api_calls', amount: 1 }); process.stdout.write(eventId + '\\n') } }
  for (let i = 0; i < 8; i++) record()`

test('kill -9 at random moments loses no recorded event', { skip: process.env.METERPLEX_TEST_SHORT && 'make test-all runs it' }, async (t) => {
  const service = await startService(t, (_, n) => n % 3 === 1 ? 'cut' : undefined)
  const dir = newFolder(t)
  let recorded = ''
  for (let i = 0; i < 3; i++) {
    const child = spawn(process.execPath, ['--input-type=module', '-e', application, service.url, dir], { stdio: ['ignore', 'pipe', 'inherit'] })
    child.stdout.on('data', (part) => { recorded += part })
    await new Promise((resolve) => child.stdout.once('data', resolve))
    await wait(Math.random() * 100)
    child.kill('SIGKILL')
    await new Promise((resolve) => child.once('close', resolve))
  }
  const client = newClient(t, service, { dir })
  assert.equal((await client.flush()).remaining, 0)
  const ids = recorded.split('\n').slice(0, -1)
  assert.ok(ids.length > 10)
  assert.deepEqual(ids.filter((id) => !service.counted.has(id)), [])
  assert.deepEqual(client.seen.errors.filter((e) => e.code === 'damaged'), [])
})

test('a client keeps no process alive, and a caller that waits does', { timeout: 60_000 }, async (t) => {
  const service = await startService(t, () => new Promise(() => {}))
  const dir = newFolder(t)
  const child = spawn(process.execPath, ['--input-type=module', '-e', `import { Meterplex } from ${JSON.stringify(new URL('../index.mjs', import.meta.url).href)}
    const client = new Meterplex({ url: process.argv[1], key: 'k', dir: process.argv[2], maxAgeMs: 1, timeoutMs: 3_600_000 })
    await client.record({ feature: 'api_calls', amount: 1 })
    console.log((await client.flush({ deadlineMs: 100 })).remaining)`, service.url, dir], { stdio: ['ignore', 'pipe', 'inherit'] })
  t.after(() => child.kill())
  let out = ''
  child.stdout.on('data', (part) => { out += part })
  assert.equal(await new Promise((resolve) => child.on('close', resolve)), 0) // it ends although the request is under way
  assert.equal(out, '1\n')
  assert.equal(service.requests.length, 1)
  assert.equal(queues(dir).length, 1)
})

test('memory: true needs no files', async (t) => {
  const service = await startService(t)
  const client = newClient(t, service, { memory: true })
  const event = newEvent()
  await client.record(event)
  assert.equal((await client.close()).remaining, 0)
  assert.deepEqual([...service.counted.keys()], [event.eventId])
})
