// Verify a Meterplex webhook (Standard Webhooks). Node's standard library only.
import { createHmac, timingSafeEqual } from "node:crypto";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

/** Reports whether a request is signed with the secret and at most tolerance seconds old. */
export function verify(secret: string, headers: Record<string, string | undefined>, body: Buffer, now: number, tolerance = 300): boolean {
  const sent = headers["webhook-timestamp"] ?? "";
  if (!/^[0-9]+$/.test(sent) || Math.abs(now - Number(sent)) > tolerance) return false;
  const key = Buffer.from(secret.replace(/^whsec_/, ""), "base64");
  const signed = Buffer.concat([Buffer.from(`${headers["webhook-id"] ?? ""}.${sent}.`), body]);
  const want = Buffer.from("v1," + createHmac("sha256", key).update(signed).digest("base64"));
  return (headers["webhook-signature"] ?? "").split(" ").some((text) => {
    const got = Buffer.from(text);
    return got.length === want.length && timingSafeEqual(got, want);
  });
}

// verify.ts SECRET ID TIMESTAMP SIGNATURE [NOW] < body
if (process.argv.length > 5 && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [secret, id, timestamp, signature, now] = process.argv.slice(2) as [string, string, string, string, string?];
  const given = { "webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": signature };
  console.log(verify(secret, given, readFileSync(0), now ? Number(now) : Date.now() / 1000) ? "accepted" : "refused");
}
