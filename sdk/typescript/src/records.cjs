'use strict'
// Records of segments: see "Files" in queue.md.

const MAGIC = Buffer.from('MPXQ0001')
/** A record that would begin at or behind it begins the next segment. */
const SEGMENT_BYTES = 4 << 20
const MAX_EVENT = 65536
const HEADER = 8
const MAX_RECORD = HEADER + MAX_EVENT

const table = new Int32Array(256).map((_, i) => {
  for (let bit = 0; bit < 8; bit++) i = i & 1 ? i >>> 1 ^ 0x82f63b78 : i >>> 1
  return i
})

/** crc32c returns the CRC-32C of bytes from one offset to another, continued from before. @param {Buffer} bytes @param {number} from @param {number} to */
function crc32c (bytes, from, to, before = 0) {
  let crc = ~before
  for (let i = from; i < to; i++) crc = crc >>> 8 ^ table[(crc ^ bytes[i]) & 255]
  return ~crc >>> 0
}

/** encode returns the record of an event. @param {string} text */
function encode (text) {
  const length = Buffer.byteLength(text)
  const record = Buffer.allocUnsafe(HEADER + length)
  record.writeUInt32LE(length, 0)
  record.write(text, HEADER)
  record.writeUInt32LE(crc32c(record, HEADER, record.length, crc32c(record, 0, 4)), 4)
  return record
}

/** lengthAt returns the length that a record at an offset names, 0 if it is out of range. @param {Buffer} bytes @param {number} at */
function lengthAt (bytes, at) {
  if (bytes.length - at < HEADER) return 0
  const length = bytes.readUInt32LE(at)
  return length >= 2 && length <= MAX_EVENT ? HEADER + length : 0
}

/** recordAt returns the length of the complete record with the right checksum at an offset, 0 if there is none. @param {Buffer} bytes @param {number} at */
function recordAt (bytes, at) {
  const length = lengthAt(bytes, at)
  if (length === 0 || at + length > bytes.length) return 0
  return crc32c(bytes, at + HEADER, at + length, crc32c(bytes, at, at + 4)) === bytes.readUInt32LE(at + 4) ? length : 0
}

/** nextRecord returns the first offset from one on at which a record begins, -1 if there is none. @param {Buffer} bytes @param {number} from */
function nextRecord (bytes, from) {
  for (let at = from; at + HEADER + 2 <= bytes.length; at++) if (recordAt(bytes, at)) return at
  return -1
}

/** isTorn reports whether the end of the last segment is the rest of a write that was not confirmed. @param {Buffer} bytes */
function isTorn (bytes) {
  return bytes.length < HEADER || lengthAt(bytes, 0) > bytes.length || bytes.every((b) => b === 0)
}

/** @param {Buffer} record */
const textOf = (record) => record.toString('utf8', HEADER)

module.exports = { HEADER, MAGIC, SEGMENT_BYTES, MAX_RECORD, crc32c, encode, lengthAt, recordAt, nextRecord, isTorn, textOf }
