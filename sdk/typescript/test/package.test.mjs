import test from 'node:test'
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { createRequire } from 'node:module'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

const require = createRequire(import.meta.url)
const here = new URL('..', import.meta.url).pathname
const pkg = require('../package.json')
const types = readFileSync(join(here, 'index.d.ts'), 'utf8')

test('ESM and CommonJS have the same exports, which index.d.ts declares', async () => {
  const esm = await import('meterplex')
  const cjs = require('meterplex')
  assert.equal(esm.Meterplex, cjs.Meterplex, 'one class, however it is loaded')
  assert.deepEqual(Object.keys(esm).sort(), Object.keys(cjs).sort())
  const declared = [...types.matchAll(/^export (?:class|function) (\w+)/gm)].map((m) => m[1])
  assert.deepEqual(declared.sort(), Object.keys(cjs).sort())
  const methods = types.slice(types.indexOf('export class Meterplex {')).split('\n}')[0]
  const documented = [...methods.matchAll(/ \*\/\n {2}(\w+)(?:<| \()/g)].map((m) => m[1]).filter((name) => name !== 'constructor')
  const internal = ['headers', 'address', 'append', 'progress', 'remaining', 'end', 'handle', 'report']
  assert.deepEqual([...documented, ...internal].sort(), Object.getOwnPropertyNames(cjs.Meterplex.prototype).filter((name) => name !== 'constructor').sort(), 'each public method has a comment')
})

test('the options of index.d.ts are those of the client', () => {
  const options = types.slice(types.indexOf('export interface Options')).split('\n}')[0]
  const declared = [...options.matchAll(/^ {2}(\w+)\??:/gm)].map((m) => m[1])
  const source = readFileSync(join(here, 'src/client.cjs'), 'utf8')
  const known = [...source.slice(source.indexOf('const defaults'), source.indexOf('const others')).matchAll(/^ {2}(\w+):/gm)].map((m) => m[1])
  assert.deepEqual(declared.sort(), [...known, 'url', 'key', 'dir', 'ca', 'onVerdict', 'onError'].sort())
})

test('index.d.ts knows the members and parameters of the OpenAPI document', () => {
  const operations = JSON.parse(readFileSync(join(here, '../operations.json'), 'utf8'))
  const sources = readdirSync(join(here, 'src')).map((name) => readFileSync(join(here, 'src', name), 'utf8')).join()
  const byHeader = new Set(['Prefer', 'Meterplex-Replay', 'Content-Encoding', 'If-None-Match'])
  for (const { operation, parameters, body = [], answer } of operations) {
    const names = [...parameters.map((p) => p.split(' ')[1]), ...body.map((b) => b.split(' ')[0].replace(/^events\[\]\./, '')), ...answer.flatMap((a) => a.split(' ')[0].split(/\[\]\.|\./).filter((n) => n !== 'data'))]
    for (const name of names) if (!byHeader.has(name) && !(operation === 'ingestUsage' && name === 'events')) assert.match(types, new RegExp(`\\b${name}\\b`), `${operation}: ${name}`)
    for (const member of answer) {
      const name = member.split(' ')[0].split('.').at(-1)
      const bigint = new RegExp(`\\b${name}\\??: bigint`).test(types)
      if (bigint) assert.ok(member.includes(' integer') || member.endsWith('null') || operation === 'ingestUsage', `${operation}: ${member} is no amount any more`)
    }
  }
  const amounts = /const amounts = new Set\(\[(.*)\]\)/.exec(sources)[1].match(/\w+/g)
  for (const name of amounts) assert.match(types, new RegExp(`\\b${name}\\??: bigint`), name)
})

test('the package is whole', () => {
  for (const name of [...pkg.files, 'LICENSE', 'README.md']) assert.ok(existsSync(join(here, name)), name)
  assert.match(pkg.version, /^\d+\.\d+\.\d+$/)
  assert.equal(pkg.dependencies, undefined)
})

test('without Node, the package imports no module of Node, and its queue is in memory', () => {
  const code = `
    const Module = require('node:module')
    const { _load: load, _resolveFilename: resolve } = Module
    Module._resolveFilename = function (name, ...more) { return name === '#platform' ? process.argv[1] + 'src/web.cjs' : resolve.call(this, name, ...more) } // the condition "node" cannot be switched off
    const used = []
    Module._load = function (name, ...more) { if (Module.builtinModules.includes(name.replace('node:', ''))) used.push(name); return load.call(this, name, ...more) }
    const { Meterplex } = require(process.argv[1] + 'index.cjs')
    if (used.length > 0) throw new Error('imports ' + used)
    try { new Meterplex({ url: 'http://127.0.0.1:9', key: 'k', dir: 'x' }); throw new Error('made') } catch (err) { if (err.code !== 'invalid_argument') throw err }
    const server = load('node:http').createServer(async (req, res) => {
      const parts = []
      for await (const part of req) parts.push(part)
      const { events } = JSON.parse(load('node:zlib').gunzipSync(Buffer.concat(parts)))
      res.writeHead(202, { 'content-type': 'application/json' }).end(JSON.stringify({ events: events.map((e) => ({ eventId: e.eventId, status: 'accepted' })) }))
    }).listen(0, async () => {
      const client = new Meterplex({ url: 'http://127.0.0.1:' + server.address().port, key: 'k', memory: true })
      await client.record({ feature: 'api_calls', amount: 1 })
      await client.close()
      console.log(client.stats().accepted)
      process.exit()
    })`
  const out = execFileSync(process.execPath, ['-e', code, here], { encoding: 'utf8' })
  assert.equal(out, '1\n')
})
