// Sends an event by the client that hey-api generates, reads its receipt, pages through a list, and reads an error.
import { createClient } from "./hey/client";
import { getReceipt, ingestUsage, listAggregates, listUsageEvents } from "./hey";

declare const process: { env: Record<string, string> };
const client = createClient({ baseUrl: process.env.METERPLEX_URL, auth: process.env.METERPLEX_KEY });
const check = (holds: boolean, answer: unknown) => { if (!holds) throw new Error(JSON.stringify(answer)); };

const main = async () => {
  const timestamp = new Date().toISOString();
  const sent = await ingestUsage({ client, throwOnError: true, body: { events: [
    { eventId: "hey-1", feature: "api_calls", amount: 3, timestamp }, { eventId: "hey-2", feature: "storage", amount: 3, timestamp }, { eventId: "hey-3", feature: "foobar", amount: 1, timestamp }] } });
  check(sent.data.accepted === 2 && sent.data.events[2].code === "feature_not_found", sent.data);
  const receipt = await getReceipt({ client, throwOnError: true, path: { eventId: "hey-1" } });
  check(receipt.data.recorded.position === sent.data.events[0].position, receipt.data);
  let read = 0;
  for (let cursor: string | undefined; ;) {
    const page = await listUsageEvents({ client, throwOnError: true, query: { limit: 1, cursor } });
    read += page.data.data.length;
    if (page.data.nextCursor === null) break;
    cursor = page.data.nextCursor;
  }
  check(read >= 2, read);
  const missing = await getReceipt({ client, path: { eventId: "hey-9" } });
  check(missing.response?.status === 404 && missing.error?.code === "not_found", missing.error);
  const exact = await listAggregates({ client, throwOnError: true, query: { amounts: "string" } });
  check(typeof exact.data === "object" && exact.data.data.every(figure => typeof (figure.amount as unknown) === "string"), exact.data);
  console.log("round trip");
};
void main();
