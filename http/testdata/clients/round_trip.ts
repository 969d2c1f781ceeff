// Sends an event with the types that openapi-typescript generates, reads its receipt, pages through a list, and reads an error.
import type { paths } from "./api";

declare const process: { env: Record<string, string> };
type Ingest = paths["/api/v1/usage/events"]["post"];
type Receipt = paths["/api/v1/usage/events/{eventId}"]["get"]["responses"][200]["content"]["application/json"];
type Problem = paths["/api/v1/usage/events/{eventId}"]["get"]["responses"][404]["content"]["application/problem+json"];
type Page = paths["/api/v1/usage/events"]["get"]["responses"][200]["content"]["application/json"];

const call = async <T>(method: string, path: string, body?: unknown): Promise<T> => {
  const response = await fetch(process.env.METERPLEX_URL + path, {
    method, headers: { Authorization: "Bearer " + process.env.METERPLEX_KEY, "Content-Type": "application/json" }, body: JSON.stringify(body),
  });
  return await response.json() as T;
};
const check = (holds: boolean, answer: unknown) => { if (!holds) throw new Error(JSON.stringify(answer)); };

const timestamp = new Date().toISOString();
const batch: Ingest["requestBody"]["content"]["application/json"] = { events: [
  { eventId: "typescript-1", feature: "api_calls", amount: 3, timestamp, type: "usage" }, { eventId: "typescript-2", feature: "foobar", amount: 1, timestamp, type: "usage" }] };
const main = async () => {
  const verdict = await call<Ingest["responses"][202]["content"]["application/json"]>("POST", "/api/v1/usage/events", batch);
  check(verdict.accepted === 1 && verdict.rejected === 1 && verdict.events[1].code === "feature_not_found", verdict);
  const receipt = await call<Receipt>("GET", "/api/v1/usage/events/typescript-1");
  check(receipt.recorded.position === verdict.events[0].position, receipt);
  let read = 0;
  for (let cursor: string | null = ""; cursor !== null;) {
    const page: Page = await call<Page>("GET", "/api/v1/usage/events?limit=1" + (cursor && "&cursor=" + encodeURIComponent(cursor)));
    read += page.data.length;
    cursor = page.nextCursor;
  }
  check(read >= 1, read);
  const problem = await call<Problem>("GET", "/api/v1/usage/events/typescript-9");
  check(problem.status === 404 && problem.code === "not_found", problem);
  console.log("round trip");
};
void main();
