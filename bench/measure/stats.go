package measure

import (
	"math"
	"slices"
	"time"
)

// Summary summarizes the samples of one path, in microseconds.
type Summary struct {
	N          int
	P50, P99   float64
	Low, High  float64 // bounds of the median, with about 95 % confidence
	Max, Total float64
}

// Summarize doesn't keep or change samples.
func Summarize(samples []time.Duration) Summary {
	if len(samples) == 0 {
		return Summary{}
	}
	s := slices.Clone(samples)
	slices.Sort(s)
	low, high := medianBounds(len(s))
	r := Summary{N: len(s), P50: micros(quantile(s, 0.50)), P99: micros(quantile(s, 0.99)),
		Low: micros(s[low]), High: micros(s[high]), Max: micros(s[len(s)-1])}
	for _, d := range s {
		r.Total += micros(d)
	}
	return r
}

// quantile returns the smallest sample that at least the share q of all samples doesn't exceed
// (nearest rank). sorted has at least one element.
func quantile(sorted []time.Duration, q float64) time.Duration {
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// medianBounds returns the indices of the two order statistics between which the median lies
// with 95 % confidence, whatever the distribution: the number of samples below it is binomial,
// here in its normal approximation. With few samples they are the smallest and the largest.
func medianBounds(n int) (low, high int) {
	half := 1.96 * math.Sqrt(float64(n)) / 2
	low = int(math.Floor(float64(n)/2 - half))
	high = int(math.Ceil(float64(n)/2 + half))
	return max(low, 0), min(high, n-1)
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// Over returns a/b, or 0, which no measurement is, if b is 0.
func Over(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
