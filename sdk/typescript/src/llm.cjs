'use strict'
// A wrapper for calls of large language models that records the tokens that they report.

/** @typedef {import('./client.cjs').Client} Client */
/** @typedef {{id?: string, input?: number, output?: number}} Tokens */

/** withTokens: see index.d.ts. @param {Client} client @param {any} options @param {(...args: any[]) => any} call */
function withTokens (client, options, call) {
  return async (/** @type {any[]} */ ...args) => {
    const answer = await call(...args)
    /** @type {Tokens} */
    const tokens = {}
    if (typeof answer?.[Symbol.asyncIterator] === 'function') return metered(answer, (chunk) => read(chunk, tokens), () => record(client, options, tokens, args))
    read(answer, tokens)
    await record(client, options, tokens, args)
    return answer
  }
}

/** read keeps the tokens that an answer, or a part of a stream, reports. A later part has the sums of all before. @param {any} part @param {Tokens} tokens */
function read (part, tokens) {
  for (const from of [part, part?.message, part?.response]) { // message: Anthropic's streams; response: OpenAI's Responses API
    tokens.id ??= from?.id
    const usage = from?.usage
    const input = usage?.prompt_tokens ?? usage?.input_tokens
    const output = usage?.completion_tokens ?? usage?.output_tokens
    // Anthropic reports tokens of its cache apart from input_tokens; OpenAI's are part of them.
    if (typeof input === 'number') tokens.input = input + (usage.cache_creation_input_tokens ?? 0) + (usage.cache_read_input_tokens ?? 0)
    if (typeof output === 'number') tokens.output = output
  }
}

/** record records the tokens. It never fails: the caller keeps the answer. @param {Client} client @param {any} options @param {Tokens} tokens @param {any[]} args */
async function record (client, options, tokens, args) {
  try {
    if (tokens.input === undefined && tokens.output === undefined) throw new Error('the answer reports no usage; for a stream of OpenAI send stream_options: {include_usage: true}')
    const metadata = await options.metadata?.(...args)
    const events = [[options.input, tokens.input, 'input'], [options.output, tokens.output, 'output']].flatMap(([feature, amount, name]) =>
      feature && amount ? [{ feature, amount, metadata, eventId: tokens.id && `${tokens.id}-${name}` }] : [])
    await client.recordMany(events)
  } catch (err) {
    client.report(/** @type {any} */ (err).code ?? 'usage_missing', `tokens were not recorded: ${/** @type {Error} */ (err).message}`)
  }
}

/** metered returns a stream that records its tokens at its end, also if its reader leaves early. @param {any} stream @param {(chunk: any) => void} read @param {() => Promise<void>} end */
function metered (stream, read, end) {
  async function * iterate () {
    try {
      for await (const chunk of stream) {
        read(chunk)
        yield chunk
      }
    } finally {
      await end()
    }
  }
  return new Proxy(stream, {
    get (target, name) {
      if (name === Symbol.asyncIterator) return iterate
      const value = Reflect.get(target, name, target)
      return typeof value === 'function' ? value.bind(target) : value
    }
  })
}

module.exports = { withTokens }
