// An application with types: tsc checks it, and it never runs.
import { Meterplex, MeterplexError, amount, countFetch, countRequests, eventId, withTokens, type Options, type QueuedEvent, type Verdict } from 'meterplex'
import { createServer } from 'node:http'

const options: Options = { url: 'https://meterplex.example', key: 'mp_test_…', dir: '/var/lib/app', onVerdict: (event: QueuedEvent, verdict: Verdict) => console.log(event.amount, verdict.position), onError: ({ code }) => console.error(code) }
await using meterplex = new Meterplex(options)
const recorded: { eventId: string } = await meterplex.record({ feature: 'a', amount: amount('1.5', 'GB', 3), timestamp: new Date(), metadata: { region: 'eu', n: [1, null] } }, { deadlineMs: 5, signal: AbortSignal.timeout(5) })
await meterplex.record({ eventId: eventId('t', 'f', 'r', new Date()), feature: 'a', type: 'retraction', correctionRef: recorded.eventId })

const { value } = await meterplex.withReservation('tokens', 4000, async (hold) => ({ amount: 3n, value: hold.reservationId }))
const text: string = value
const { settled } = await meterplex.withReservation('tokens', 4000n, () => 5)
const released: bigint | undefined = settled.released

for await (const figure of meterplex.aggregates({ period: '2026-11' })) {
  const exact: bigint = figure.amount
  console.log(exact, figure.periodEnd?.slice(0, 4))
}
const list = meterplex.usage({ feature: 'a', from: new Date(), to: '2026-12-01T00:00:00Z', groupBy: 'metadata.region' })
const [bucket] = await list.toArray()
const complete: string | null | undefined = list.page?.completeUpTo
const checked = await meterplex.check('tokens', 5)
const source: 'service' | 'cache' | 'policy' = checked.source

createServer((req, res) => countRequests(meterplex, { feature: 'a', metadata: (request) => ({ path: request.url }) })(req, res))
const handler: (request: Request) => Promise<Response> = countFetch(meterplex, { feature: 'a', amount: async () => 1 }, (request: Request) => new Response(request.url))
const create = withTokens(meterplex, { input: 'in', output: 'out', metadata: (request) => ({ model: request.model }) }, async (request: { model: string }) => ({ id: request.model, choices: [] }))
const answer: { id: string } = await create({ model: 'large' })

try {
  await meterplex.consume('tokens', 1)
} catch (err) {
  if (err instanceof MeterplexError) console.log(err.code, err.remedy, err.problem?.remaining)
}
console.log(text, released, bucket?.eventCount, complete, source, handler, answer)

// @ts-expect-error: an amount is no text
await meterplex.consume('tokens', '1')
// @ts-expect-error: a misspelt member
await meterplex.record({ feature: 'a', amonut: 1 })
