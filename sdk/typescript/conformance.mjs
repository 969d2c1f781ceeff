// The program of sdk/conformance/README.md: reads requests as JSON lines, and answers each with a line.
import { createInterface } from 'node:readline'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { Meterplex, MeterplexError, amount, eventId } from './index.mjs'

const require = createRequire(import.meta.url)
const { prepare } = require('./src/event.cjs')
const { FileQueue } = require('./src/files.cjs')

/** @type {Meterplex} */
let client
let verdicts = []
let errors = []

const rows = async (list) => ({ rows: await list.toArray() })
const query = ({ query: { wait, ...more } = {} }) => ({ ...more, ...(wait === undefined ? {} : { wait: Number(wait) }) })
const units = (text) => text === undefined ? undefined : BigInt(text)

const actions = {
  new ({ url, key, dir, options: { ca, ...options } = {} }) {
    client = new Meterplex({
      url, key, dir: options.memory ? undefined : dir, ...options, ca: ca ? readFileSync(ca) : undefined,
      onVerdict: (event, { status, code, reason, remedy, position }) => { verdicts.push({ eventId: event.eventId, status, code, reason, remedy, position }) },
      onError: ({ code, detail }) => { errors.push({ code, detail }) }
    })
  },
  record: ({ event, deadlineMs }) => client.record(event, { deadlineMs }),
  recordMany: async ({ events, deadlineMs }) => ({ eventIds: (await client.recordMany(events, { deadlineMs })).map((e) => e.eventId) }),
  flush: ({ deadlineMs }) => client.flush({ deadlineMs }),
  close: ({ deadlineMs }) => client.close({ deadlineMs }),
  stats () {
    const { lastError, ...stats } = client.stats()
    return { ...stats, lastError: lastError ? `${lastError.code}: ${lastError.detail}` : '' }
  },
  verdicts: () => ({ verdicts: verdicts.splice(0) }),
  errors: () => ({ errors: errors.splice(0) }),
  rejected: async () => ({ events: (await client.rejected()).map((r) => ({ ...r, event: { ...r.event, amount: Number(r.event.amount) } })) }),
  acknowledge: ({ eventId }) => client.acknowledge(eventId),
  setKey: ({ key }) => client.setKey(key),
  check: ({ feature, amount, minPosition, wait }) => client.check(feature, units(amount), { minPosition, wait }),
  consume: ({ feature, amount, ...options }) => client.consume(feature, units(amount), pick(options, 'eventId', 'metadata', 'deadlineMs')),
  reserve: ({ feature, amount, ...options }) => client.reserve(feature, units(amount), pick(options, 'reservationId', 'ttlSeconds', 'deadlineMs')),
  commit: ({ feature, reservationId, amount, ...options }) => client.commit(feature, reservationId, units(amount), pick(options, 'eventId', 'overage', 'deadlineMs')),
  extend: ({ feature, reservationId, ttlSeconds, deadlineMs }) => client.extend(feature, reservationId, ttlSeconds, { deadlineMs }),
  release: ({ feature, reservationId, deadlineMs }) => client.release(feature, reservationId, { deadlineMs }),
  async withReservation ({ feature, amount, actual, fail, ...options }) {
    const use = () => {
      if (fail) throw new MeterplexError('callback_failed', 'the callback fails')
      return units(actual)
    }
    return (await client.withReservation(feature, units(amount), use, pick(options, 'reservationId', 'ttlSeconds', 'deadlineMs'))).settled
  },
  aggregates: (request) => rows(client.aggregates(query(request))),
  usageEvents: (request) => rows(client.events(query(request))),
  entitlements: (request) => rows(client.entitlements(query(request))),
  reservations (request) {
    const { feature, ...options } = query(request)
    return rows(client.reservations(feature, options))
  },
  receipt: ({ eventId, minPosition, wait }) => client.receipt(eventId, { minPosition, wait }),
  eventId: ({ tenant, feature, resource, occurredAt }) => ({ eventId: eventId(tenant, feature, resource, occurredAt) }),
  amount: ({ decimal, unit, scale }) => ({ amount: amount(decimal, unit, scale) }),
  canonical: ({ event }) => ({ canonical: prepare(event).text }),
  async readQueue ({ dir }) {
    const damaged = []
    const queue = new FileQueue({ dir, tenant: '', durability: 'os', queueBytes: 2 ** 30, changed () {},
      report: (_, __, { segment, offset, bytes } = {}) => { if (bytes) damaged.push({ segment, offset, bytes }) } })
    const eventIds = []
    await queue.start()
    for (let batch; (batch = await queue.next(1000, 1 << 20)); await queue.advance(batch.folder, batch.events)) eventIds.push(...batch.events.map((e) => JSON.parse(e.text).eventId))
    await queue.close()
    return { eventIds, damaged }
  },
  async load ({ events, callers, prefix, feature }) {
    const start = performance.now()
    let next = 0
    await Promise.all(Array.from({ length: callers }, async () => { while (next < events) await client.record({ eventId: `${prefix}-${next++}`, feature, amount: 1n }) }))
    return { ms: Math.round(performance.now() - start) }
  },
  fork: () => ({ supported: false })
}

const pick = (from, ...names) => Object.fromEntries(names.filter((name) => from[name] !== undefined).map((name) => [name, from[name]]))
const write = (answer) => process.stdout.write(JSON.stringify(answer, (_, value) => typeof value === 'bigint' ? String(value) : value) + '\n')

async function answer (request) {
  try {
    if (!Object.hasOwn(actions, request.do)) throw new MeterplexError('invalid_argument', `no action ${request.do}`)
    write({ id: request.id, ...await actions[request.do](request) })
  } catch (err) {
    const { code = 'internal', status = 0, detail = String(err?.stack ?? err), id: requestId } = err ?? {}
    write({ id: request.id, error: { code, status, detail, requestId } })
  }
}

createInterface({ input: process.stdin }).on('line', (line) => { answer(JSON.parse(line)) })
