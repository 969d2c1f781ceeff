// Reports the violations that axe finds on the page /docs, in light and dark, and the messages of the browser's console.
const puppeteer = require("puppeteer-core"), fs = require("fs");
(async () => {
  const browser = await puppeteer.launch({ executablePath: process.env.BROWSER, args: ["--no-sandbox", "--headless=new"] });
  let faults = 0;
  for (const scheme of ["light", "dark"]) {
    const page = await browser.newPage(), said = [];
    page.on("console", m => said.push(m.text()));
    page.on("pageerror", e => said.push(e.message));
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
    await page.goto(process.env.METERPLEX_URL + "/docs");
    await page.waitForSelector("#schemas article");
    await page.evaluate(() => document.querySelectorAll("details").forEach(d => { d.open = true; }));
    for (const text of said) { faults++; console.log(scheme, "console:", text); }
    await page.evaluate(fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8"));
    for (const v of (await page.evaluate(() => axe.run())).violations) { faults++; console.log(scheme, v.id, v.nodes.length, v.nodes[0].html); }
  }
  await browser.close();
  if (!faults) console.log("no violation");
})().catch(e => { console.log(e); process.exit(1); });
