package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Markdown returns the report as Markdown. It links the picture's file, if one is named.
func (r *Report) Markdown(picture string) string {
	var b strings.Builder
	kind := ""
	if r.Quick {
		kind = " (quick)"
	}
	fmt.Fprintf(&b, "# Benchmark of %s%s\n\n", r.Date.Format("2006-01-02 15:04 MST"), kind)
	fmt.Fprintf(&b, "`%s`, %.0f s. Load, service, PostgreSQL and Kafka share this machine; fsync on, acks=all.\n\n", r.Command, r.Seconds)
	r.conditions(&b)
	b.WriteString("\n## Figures\n\n| # | figure | measured | raw limit | of the limit | aim | met |\n|---|---|---|---|---|---|---|\n")
	for i := range r.Figures {
		b.WriteString(r.Figures[i].row())
	}
	b.WriteString("\n## Latencies\n\nOpen loop: send times are fixed in advance and latency counts from them. Milliseconds.\n\n| # | " +
		"load | p50 | p90 | p99 | p99.9 | max | limit p50 | p90 | p99 | p99.9 | max |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for i := range r.Figures {
		b.WriteString(r.Figures[i].latencyRow())
	}
	if len(r.Curves) > 0 {
		b.WriteString("\n## Throughput against latency\n\n")
		if picture != "" {
			b.WriteString("![Throughput against latency](" + picture + ")\n\n")
		}
		b.WriteString("| figure | load | events/s | p50 | p90 | p99 | p99.9 | max |\n|---|---|---|---|---|---|---|---|\n" + r.curveRows())
	}
	r.readRows(&b)
	b.WriteString("\n## CPU for each event\n\nMicroseconds of CPU time for each event; cores in use in brackets. Others: all other " +
		"programs on the machine.\n\n| # | events | service | PostgreSQL | Kafka | load generator | others " +
		"|\n|---|---|---|---|---|---|---|\n")
	for i := range r.Figures {
		b.WriteString(r.Figures[i].cpuRow())
	}
	b.WriteString("\n## Database writes for each event\n\nBytes of write-ahead log; transactions that wrote, and all of them; synced " +
		"writes of the log; full page images. The limit's: bytes and writing transactions.\n\n| # | WAL bytes | writing transactions | " +
		"transactions | syncs | page images | limit |\n|---|---|---|---|---|---|---|\n")
	for i := range r.Figures {
		b.WriteString(r.Figures[i].writtenRow())
	}
	b.WriteString("\n## Resident memory, MiB\n\nPostgreSQL's shared pages count once.\n\n| # | service | its peak | PostgreSQL | Kafka " +
		"| load generator |\n|---|---|---|---|---|---|\n")
	for i := range r.Figures {
		f := &r.Figures[i]
		fmt.Fprintf(&b, "| %s | %.0f | %.0f | %.0f | %.0f | %.0f |\n", f.ID, f.Memory.Service, f.Memory.ServicePeak, f.Memory.Postgres,
			f.Memory.Kafka, f.Memory.Load)
	}
	r.remarks(&b)
	return b.String()
}

// readRows writes the reads at size, if they were measured.
func (r *Report) readRows(b *strings.Builder) {
	rows := 0
	for i := range r.Figures {
		for j := range r.Figures[i].Reads {
			if rows++; rows == 1 {
				b.WriteString("\n## Reads at size\n\nClosed loop: one client sends a request after the answer to the one before, at " +
					"random places of the log. Milliseconds.\n\n| # | read | key | requests | refused | p50 | p99 | max " +
					"|\n|---|---|---|---|---|---|---|---|\n")
			}
			b.WriteString(r.Figures[i].Reads[j].row(r.Figures[i].ID))
		}
	}
}

func (x *Read) row(figure string) string {
	name := x.Name
	if x.IsLimit {
		name += " (limit)"
	}
	l := x.Latency
	return fmt.Sprintf("| %s | %s | %s | %d | %d | %s | %s | %s |\n", figure, name, x.Key, l.Count, x.Refused, short(l.P50), short(l.P99),
		short(l.Max))
}

func (r *Report) conditions(b *strings.Builder) {
	m, v := &r.Machine, &r.Versions
	modified := ""
	if v.Modified {
		modified = ", with uncommitted changes"
	}
	fmt.Fprintf(b, "- Machine: %d cores (%s), %.1f GiB, %s, kernel %s; load average before the run %s\n", m.Cores, m.Processor,
		m.MemoryMiB/1024, m.OS, m.Kernel, m.LoadAvg)
	fmt.Fprintf(b, "- Build: commit %s%s, %s; PostgreSQL %s; Apache Kafka %s\n", v.Commit, modified, v.Go, v.Postgres, v.Kafka)
	fmt.Fprintf(b, "- PostgreSQL settings: %s\n", strings.Join(v.PostgresSettings, ", "))
	fmt.Fprintf(b, "- %d tenants in as many log partitions; each event has an id of %d characters, a feature, an amount, a time and one "+
		"member of metadata\n", tenantCount, dedupePrefix-2+idDigits)
}

func (r *Report) remarks(b *strings.Builder) {
	b.WriteString("\n## Notes\n\n")
	for i := range r.Figures {
		f := &r.Figures[i]
		if f.LimitIs != "" {
			fmt.Fprintf(b, "- %s, limit: %s\n", f.ID, f.LimitIs)
		}
		if len(f.Runs) > 1 {
			fmt.Fprintf(b, "- %s, rounds: %s; limit: %s\n", f.ID, list(f.Runs), list(f.LimitRuns))
		}
		for _, n := range f.Notes {
			fmt.Fprintf(b, "- %s, %s: %s\n", f.ID, n.Name, n.Text)
		}
	}
}

func list(values []float64) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, short(v))
	}
	return strings.Join(texts, " · ")
}

func (f *Figure) row() string {
	limit, ratio := "–", "–"
	if f.Limit > 0 {
		limit = short(f.Limit) + " " + f.Unit
	}
	if f.Ratio > 0 {
		ratio = strconv.FormatFloat(f.Ratio, 'f', 2, 64)
	}
	var texts, met []string
	for _, a := range f.Aims {
		texts, met = append(texts, a.Text), append(met, yesNo(a.Met))
	}
	return fmt.Sprintf("| %s | %s | **%s %s** | %s | %s | %s | %s |\n", f.ID, f.What, short(f.Value), f.Unit, limit, ratio,
		orDash(texts, "; "), orDash(met, "; "))
}

func orDash(texts []string, with string) string {
	if len(texts) == 0 {
		return "–"
	}
	return strings.Join(texts, with)
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "**no**"
}

func (f *Figure) latencyRow() string {
	if f.Latency == nil {
		return ""
	}
	return fmt.Sprintf("| %s | %s, %d of them | %s | %s |\n", f.ID, f.LatencyAt, f.Latency.Count, f.Latency.cells(), f.LimitLatency.cells())
}

func (l *Latency) cells() string {
	if l == nil {
		return "– | – | – | – | –"
	}
	return fmt.Sprintf("%s | %s | %s | %s | %s", short(l.P50), short(l.P90), short(l.P99), short(l.P999), short(l.Max))
}

func (f *Figure) cpuRow() string {
	cell := func(each, seconds float64) string {
		return fmt.Sprintf("%s (%.2f)", short(each), seconds/max(f.CPU.Elapsed, 0.001))
	}
	each, all := &f.CPU.MicrosEach, &f.CPU.Seconds
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |\n", f.ID, thousands(int64(f.CPU.Events)), cell(each.Service, all.Service),
		cell(each.Postgres, all.Postgres), cell(each.Kafka, all.Kafka), cell(each.Load, all.Load), cell(each.Others, all.Others))
}

// line is printed as soon as a figure is known.
func (f *Figure) line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s %s", f.ID, short(f.Value), f.Unit)
	if f.Limit > 0 {
		fmt.Fprintf(&b, "; limit %s", short(f.Limit))
	}
	if f.Ratio > 0 {
		fmt.Fprintf(&b, " (%.2f of it)", f.Ratio)
	}
	if f.Latency != nil {
		fmt.Fprintf(&b, "; %s %s", f.Latency, f.LatencyAt)
	}
	for _, a := range f.Aims {
		fmt.Fprintf(&b, "; %s: %s", a.Text, strings.Trim(yesNo(a.Met), "*"))
	}
	if c, w := &f.CPU.MicrosEach, &f.Written.Each; f.CPU.Events > 0 {
		fmt.Fprintf(&b, "\nfor each event: CPU %s us service, %s PostgreSQL, %s Kafka, %s load; %s B of WAL, %s transactions, %s of "+
			"them writing; others used %.2f cores",
			short(c.Service), short(c.Postgres), short(c.Kafka), short(c.Load), short(w.WALBytes), fine(w.Transactions), fine(w.Writes),
			f.CPU.Seconds.Others/max(f.CPU.Elapsed, 0.001))
	}
	for i := range f.Reads {
		x := &f.Reads[i]
		fmt.Fprintf(&b, "\n%s, %s's key: p50 %s, p99 %s, max %s ms of %d; %d refused", x.Name, x.Key, short(x.Latency.P50),
			short(x.Latency.P99), short(x.Latency.Max), x.Latency.Count, x.Refused)
	}
	for _, n := range f.Notes {
		fmt.Fprintf(&b, "\n%s: %s", n.Name, n.Text)
	}
	return b.String()
}

// short formats a number with three significant digits below 1,000.
func short(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1000:
		return thousands(int64(math.Round(v)))
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
