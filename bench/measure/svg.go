package measure

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// Series is one panel of the histogram.
type Series struct {
	Name    string
	Samples []time.Duration
}

// The measures of the picture, in its own units.
const (
	svgWidth  = 760
	svgLeft   = 170 // names
	svgRight  = 20
	svgTop    = 40
	svgPanel  = 64
	svgBottom = 40
	perDecade = 20 // bins in a factor of ten
)

// Histogram draws one panel per series over a common logarithmic time axis. It shows the spread
// of latencies, which a median doesn't. Heights are shares of the series' samples, on one scale
// in all panels; a line marks the median.
func Histogram(w io.Writer, title string, all []Series) error {
	low, high := math.Inf(1), math.Inf(-1)
	for _, s := range all {
		for _, d := range s.Samples {
			low, high = min(low, micros(d)), max(high, micros(d))
		}
	}
	if math.IsInf(low, 1) {
		return fmt.Errorf("draw histogram: no samples")
	}
	first := math.Floor(math.Log10(max(low, 1)) * 4) // the axis ends at quarter decades
	last := max(math.Ceil(math.Log10(max(high, 1))*4), first+1)
	first, last = first/4, last/4
	bins := int(math.Ceil((last - first) * perDecade))
	x := func(us float64) float64 {
		return svgLeft + (math.Log10(max(us, 1))-first)/(last-first)*(svgWidth-svgLeft-svgRight)
	}
	shares, most := make([][]float64, len(all)), 0.0
	for i, s := range all {
		shares[i] = make([]float64, bins)
		for _, d := range s.Samples {
			b := int((math.Log10(max(micros(d), 1)) - first) * perDecade)
			shares[i][min(max(b, 0), bins-1)] += 1 / float64(len(s.Samples))
		}
		for _, v := range shares[i] {
			most = max(most, v)
		}
	}
	height := svgTop + svgPanel*len(all) + svgBottom
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" fill="#222">`+"\n", svgWidth, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/><text x="12" y="22" font-size="14">%s</text>`+"\n", svgWidth, height, escape(title))
	for _, us := range ticks(first, last) {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#ddd"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n",
			x(us), svgTop, x(us), height-svgBottom, x(us), height-svgBottom+18, tickName(us))
	}
	for i, s := range all {
		base := float64(svgTop + svgPanel*(i+1))
		sum := Summarize(s.Samples)
		fmt.Fprintf(&b, `<text x="12" y="%.1f">%s</text><text x="12" y="%.1f" fill="#666">p50 %s, n %d</text>`+"\n",
			base-24, escape(s.Name), base-8, tickName(sum.P50), sum.N)
		for j, v := range shares[i] {
			if v == 0 {
				continue
			}
			at, to := math.Pow(10, first+float64(j)/perDecade), math.Pow(10, first+float64(j+1)/perDecade)
			h := v / most * (svgPanel - 10)
			fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="#3b6ea5"/>`, x(at), base-h, x(to)-x(at)-0.5, h)
		}
		fmt.Fprintf(&b, "\n"+`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#c33" stroke-width="1.5"/>`, x(sum.P50), base-svgPanel+8, x(sum.P50), base)
		fmt.Fprintf(&b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#888"/>`+"\n", svgLeft, base, svgWidth-svgRight, base)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" fill="#666">share of calls over latency, logarithmic; red: median</text>`+"\n</svg>\n", svgLeft, height-6)
	_, err := io.WriteString(w, b.String())
	return err
}

// ticks are 1, 2 and 5 times the powers of ten between two logarithms, in microseconds.
func ticks(first, last float64) []float64 {
	var out []float64
	for e := math.Floor(first); e <= last; e++ {
		for _, m := range []float64{1, 2, 5} {
			if l := e + math.Log10(m); l >= first-1e-9 && l <= last+1e-9 {
				out = append(out, m*math.Pow(10, e))
			}
		}
	}
	return out
}

func tickName(us float64) string {
	switch {
	case us >= 1e6:
		return fmt.Sprintf("%.3g s", us/1e6)
	case us >= 1e3:
		return fmt.Sprintf("%.3g ms", us/1e3)
	}
	return fmt.Sprintf("%.3g µs", us)
}

// escape writes a text as XML. encoding/xml would make its tables at every start of palyra.
func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;").Replace(s)
}
