package main

import (
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Dimensions of the picture in pixels: at most two panels side by side.
const (
	panelWidth  = 480
	panelHeight = 360
	marginLeft  = 58
	marginRight = 36
	marginTop   = 64
	marginFoot  = 48
)

// Colours that are readable on white and on black.
const (
	inkText = "#7d8590"
	inkGrid = "#7d859055"
)

func inks() []string { return []string{"#2f81f7", "#d9730d", "#2da44e", "#a371f7"} }

// scale is a logarithmic axis over whole decades.
type scale struct {
	low, high float64 // exponents of ten
	from, to  float64 // pixels
}

func (s scale) at(v float64) float64 {
	return s.from + (math.Log10(v)-s.low)/(s.high-s.low)*(s.to-s.from)
}

// scaleOf spans all values.
func scaleOf(values []float64, from, to float64) scale {
	s := scale{math.Floor(math.Log10(slices.Min(values))), math.Ceil(math.Log10(slices.Max(values))), from, to}
	if s.high == s.low {
		s.high++
	}
	return s
}

// Picture draws the curves as SVG: a panel for each kind, throughput to the right and latency
// upwards, both logarithmic. It returns "" without curves.
func (r *Report) Picture() string {
	var panels []string
	for _, c := range r.Curves {
		if len(c.Points) > 0 && !slices.Contains(panels, c.Panel) {
			panels = append(panels, c.Panel)
		}
	}
	if len(panels) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="12" fill="%s">`+"\n",
		panelWidth*len(panels), panelHeight, inkText)
	fmt.Fprintf(&b, "<title>Throughput against latency, %s, commit %.12s</title>\n", r.Date.Format("2006-01-02"),
		escaped(r.Versions.Commit))
	for i, name := range panels {
		fmt.Fprintf(&b, `<g transform="translate(%d 0)">`+"\n", i*panelWidth)
		panel(&b, name, slices.DeleteFunc(slices.Clone(r.Curves), func(c Curve) bool { return c.Panel != name || len(c.Points) == 0 }))
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func panel(b *strings.Builder, name string, curves []Curve) {
	var rates, latencies []float64
	for _, c := range curves {
		for _, p := range c.Points {
			rates = append(rates, max(p.Rate, 1))
			latencies = append(latencies, max(p.Latency.P50, 0.01), max(p.Latency.P99, 0.01))
		}
	}
	x := scaleOf(rates, marginLeft, panelWidth-marginRight)
	y := scaleOf(latencies, panelHeight-marginFoot, marginTop)
	fmt.Fprintf(b, `<text x="%d" y="20" font-size="14" font-weight="600">%s</text>`+"\n", marginLeft, escaped(name))
	axes(b, x, y)
	for i, c := range curves {
		ink := inks()[i%len(inks())]
		legend := float64(marginLeft + i*200)
		fmt.Fprintf(b, `<line x1="%.0f" y1="40" x2="%.0f" y2="40" stroke="%s" stroke-width="2"/><text x="%.0f" y="44">%s</text>`+"\n",
			legend, legend+22, ink, legend+28, escaped(c.Name))
		line(b, x, y, &c, ink, "", func(l *Latency) float64 { return l.P50 })
		line(b, x, y, &c, ink, ` stroke-dasharray="5 4"`, func(l *Latency) float64 { return l.P99 })
	}
}

// axes draws a line and a number for each decade.
func axes(b *strings.Builder, x, y scale) {
	for e := x.low; e <= x.high; e++ {
		at := x.at(math.Pow(10, e))
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/><text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+
			"\n",
			at, y.from, at, y.to, inkGrid, at, y.from+16, decade(e))
	}
	for e := y.low; e <= y.high; e++ {
		at := y.at(math.Pow(10, e))
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/><text x="%.1f" y="%.1f" text-anchor="end">%s</text>`+
			"\n",
			x.from, at, x.to, at, inkGrid, x.from-6, at+4, decade(e))
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle">events/s offered, open loop</text>`+"\n", (x.from+x.to)/2, y.from+36)
	fmt.Fprintf(b, `<text transform="translate(14 %.1f) rotate(-90)" text-anchor="middle">ms: p50 solid, p99 dashed</text>`+"\n",
		(y.from+y.to)/2)
}

func decade(e float64) string {
	v := math.Pow(10, e)
	if v < 1 {
		return fmt.Sprintf("%.*f", int(-e), v)
	}
	return thousands(int64(v))
}

func line(b *strings.Builder, x, y scale, c *Curve, ink, dash string, of func(*Latency) float64) {
	var points, dots strings.Builder
	for _, p := range c.Points {
		px, py := x.at(max(p.Rate, 1)), y.at(max(of(p.Latency), 0.01))
		fmt.Fprintf(&points, "%.1f,%.1f ", px, py)
		fmt.Fprintf(&dots, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"><title>%s at %s events/s: %s</title></circle>`, px, py, ink,
			escaped(c.Name), short(p.Rate), p.Latency)
	}
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"%s/>%s`+"\n", strings.TrimSpace(points.String()), ink,
		dash, dots.String())
}

func escaped(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder never fails
	return b.String()
}
