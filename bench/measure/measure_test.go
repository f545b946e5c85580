package measure

import (
	"bytes"
	"debug/elf"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func us(v ...float64) (out []time.Duration) {
	for _, n := range v {
		out = append(out, time.Duration(n*1e3))
	}
	return out
}

func TestSummarize(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred { // 100 … 1, so that sorting shows
		hundred[i] = time.Duration(100-i) * time.Microsecond
	}
	for _, c := range []struct {
		name    string
		samples []time.Duration
		want    Summary
	}{
		{"none", nil, Summary{}},
		{"one", us(7), Summary{N: 1, P50: 7, P99: 7, Low: 7, High: 7, Max: 7, Total: 7}},
		{"odd", us(300, 100, 200), Summary{N: 3, P50: 200, P99: 300, Low: 100, High: 300, Max: 300, Total: 600}},
		{"hundred", hundred, Summary{N: 100, P50: 50, P99: 99, Low: 41, High: 61, Max: 100, Total: 5050}},
	} {
		before := slices.Clone(c.samples)
		if got := Summarize(c.samples); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		if !slices.Equal(before, c.samples) {
			t.Errorf("%s: summarize changed its argument", c.name)
		}
	}
}

func TestMedianBounds(t *testing.T) {
	for n := 1; n <= 200; n++ {
		low, high := medianBounds(n)
		if low < 0 || high >= n || low > high {
			t.Fatalf("medianBounds(%d) = %d, %d", n, low, high)
		}
		// P(low < number of samples below the median ≤ high), binomial(n, 1/2).
		in := 0.0
		for k := low + 1; k <= high; k++ {
			lg := func(x int) float64 { v, _ := math.Lgamma(float64(x) + 1); return v }
			in += math.Exp(lg(n) - lg(k) - lg(n-k) - float64(n)*math.Ln2)
		}
		if n >= 6 && (in < 0.94 || n > 100 && in > 0.98) {
			t.Errorf("medianBounds(%d) = %d, %d holds the median with probability %.3f", n, low, high, in)
		}
	}
}

func TestRecords(t *testing.T) {
	rs := Records("set", "program", Gap8ms, []string{"floor", Bwrap, "cell"},
		[][]time.Duration{us(300, 100, 200), us(4000, 3000, 5000), us(1000, 800, 900)})
	for i, want := range []Record{
		{Path: "floor", P50: 200, P99: 300, Ratio: 1, Bwrap: 20, RatioLow: 1, RatioHigh: 1},
		{Path: Bwrap, P50: 4000, P99: 5000, Ratio: 20, Bwrap: 1, RatioLow: 10, RatioHigh: 50},
		{Path: "cell", P50: 900, P99: 1000, Ratio: 4.5, Bwrap: 4000.0 / 900, RatioLow: 800.0 / 300, RatioHigh: 10},
	} {
		want.Set, want.Program, want.Pattern, want.N = "set", "program", Gap8ms, 3
		if rs[i] != want {
			t.Errorf("record %d = %+v, want %+v", i, rs[i], want)
		}
	}
	if rs := Records("set", "program", Gap8ms, []string{"floor", "call"}, [][]time.Duration{us(1), us(2)}); rs[1].Bwrap != 0 {
		t.Errorf("without bwrap its ratio is %v, want 0", rs[1].Bwrap)
	}
}

// counter is a path that takes no time and notes the order of turns.
func counter(name string, turns *[]string) Path {
	return Path{Name: name, Once: func() (time.Duration, error) {
		*turns = append(*turns, name)
		return time.Microsecond, nil
	}}
}

func TestInterleave(t *testing.T) {
	var turns []string
	got, err := Interleave([]Path{counter("a", &turns), counter("b", &turns)}, Pattern{Block: 10}, 25)
	if err != nil {
		t.Fatal(err)
	}
	if len(got[0]) != 30 || len(got[1]) != 30 {
		t.Errorf("%d and %d samples, want 30 of each: whole blocks", len(got[0]), len(got[1]))
	}
	for i := 0; i < len(turns); i += 20 {
		a, b := turns[i], turns[i+10]
		for j := range 10 {
			if turns[i+j] != a || turns[i+10+j] != b || a == b {
				t.Fatalf("turns %v: no blocks of ten, each path once a round", turns[i:i+20])
			}
		}
	}
	broken := Path{Name: "c", Once: func() (time.Duration, error) { return 0, errors.New("broken") }}
	if _, err := Interleave([]Path{counter("a", &turns), broken}, Pattern{Block: 1}, 5); err == nil || !strings.Contains(err.Error(), "measure c: broken") {
		t.Errorf("error of a path: %v", err)
	}
}

func TestStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		p := Path{Name: "p", Once: func() (time.Duration, error) {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			<-time.After(time.Microsecond)
			return time.Microsecond, nil
		}}
		got, took, err := Storm(p, 4, time.Millisecond)
		if err != nil || len(got) != 4000 || took != time.Millisecond || most.Load() != 4 {
			t.Errorf("storm: %d samples in %v, %d at once, error %v", len(got), took, most.Load(), err)
		}
		p.Once = func() (time.Duration, error) { return 0, errors.New("broken") }
		if _, took, err := Storm(p, 4, time.Hour); err == nil || took != 0 {
			t.Errorf("storm of a broken path: error %v after %v", err, took)
		}
	})
}

func TestHistogram(t *testing.T) {
	var b bytes.Buffer
	err := Histogram(&b, "a <title> & more", []Series{{"fast", us(100, 110, 120, 5000)}, {"slow", us(2000, 2000)}, {"none", nil}})
	if err != nil {
		t.Fatal(err)
	}
	text, bars := "", 0
	for d := xml.NewDecoder(&b); ; {
		tok, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch e := tok.(type) {
		case xml.CharData:
			text += string(e) + "\n"
		case xml.StartElement:
			if e.Name.Local == "rect" {
				bars++
			}
			for _, a := range e.Attr {
				if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") || strings.Contains(a.Value, "%!") {
					t.Errorf("%s %s = %q", e.Name.Local, a.Name.Local, a.Value)
				}
			}
		}
	}
	if !strings.Contains(text, "a <title> & more") || !strings.Contains(text, "p50 110 µs, n 4") {
		t.Errorf("text of the picture: %q", text)
	}
	if bars < 4 { // the ground, two or more bins of one series, one of the other
		t.Errorf("%d rectangles", bars)
	}
	if err := Histogram(io.Discard, "", []Series{{"none", nil}}); err == nil {
		t.Error("no samples: no error")
	}
}

func TestMachineFacts(t *testing.T) {
	const mounts = "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/b /tmp/x xfs rw 0 0\n"
	for dir, want := range map[string]string{"/home": "ext4", "/tmp/y": "tmpfs", "/tmp/x/y": "xfs", "/tmpx": "ext4"} {
		if got := fileSystem(mounts, dir); got != want {
			t.Errorf("fileSystem(%q) = %q, want %q", dir, got, want)
		}
	}
	const slabs = "slabinfo - version: 2.1\n# name <active_objs>\nnet_namespace         35     49   4288\n"
	if got := slabObjects(slabs, "net_namespace"); got != 35 {
		t.Errorf("slabObjects = %d, want 35", got)
	}
	was, is := processorTime("cpu  10 0 20 100 10 1 2 7 5 0\ncpu0 1"), processorTime("cpu  40 0 40 140 20 1 2 7 35 0\n")
	if d := is.since(was); d.used != 500*time.Millisecond || d.busy() != 0.5 {
		t.Errorf("processors: %+v, %g busy", d, d.busy())
	}
	for _, bad := range []string{"", "cpu", "cpu 1 2 3 4 5 6 7", "cpu 1 2 3 x 5 6 7 8", "cpu0 1 2 3 4 5 6 7 8"} {
		if got := processorTime(bad); got != (processors{}) || got.busy() != 0 {
			t.Errorf("processors of %q: %+v", bad, got)
		}
	}
	if got := slabObjects("", "net_namespace"); got != -1 {
		t.Errorf("slabObjects of nothing = %d, want -1", got)
	}
	start := counts{netns: 30, slab: 100 << 10}
	for _, c := range []struct {
		now  counts
		want bool
	}{{start, true}, {counts{50, 100 << 10}, true}, {counts{90, 100 << 10}, false}, {counts{30, 120 << 10}, false}} {
		if got := settled(start, c.now); got != c.want {
			t.Errorf("settled(%v) = %v", c.now, got)
		}
	}
	if !settled(counts{-1, 0}, counts{-1, 0}) {
		t.Error("a host that does not say how many there are never settles")
	}
}

func TestTable(t *testing.T) {
	var md, text strings.Builder
	table := Table{Title: "T", Head: []string{"a", "b"}, Left: 1, Rows: [][]string{{"x", "1"}, {"long", "22"}}}
	table.Markdown(&md)
	if got, want := md.String(), "\n### T\n\n| a | b |\n|---|--:|\n| x | 1 |\n| long | 22 |\n"; got != want {
		t.Errorf("markdown %q, want %q", got, want)
	}
	table.Text(&text)
	if got, want := text.String(), "\nT\na      b\nx      1\nlong  22\n"; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
}

// A call that doesn't count is made again. A path in which none counts has no samples, doesn't
// end the others and has no record.
func TestUnfit(t *testing.T) {
	n := 0
	half := Path{Name: "half", Once: func() (time.Duration, error) {
		if n++; n%2 == 0 {
			return 0, fmt.Errorf("wrapped: %w", ErrUnfit)
		}
		return time.Microsecond, nil
	}}
	never := Path{Name: "never", Once: func() (time.Duration, error) { return 0, ErrUnfit }}
	paths := []Path{half, never}
	got, err := Interleave(paths, Pattern{Block: 1}, 20)
	if err != nil || len(got[0]) != 20 || len(got[1]) != 0 {
		t.Fatalf("%d and %d samples, %v", len(got[0]), len(got[1]), err)
	}
	if rs := Records("set", "program", Burst, Names(paths), got); len(rs) != 1 || rs[0].Path != "half" {
		t.Errorf("records %+v", rs)
	}
	synctest.Test(t, func(t *testing.T) {
		once := half.Once
		half.Once = func() (time.Duration, error) {
			<-time.After(time.Microsecond)
			return once()
		}
		if all, _, err := Storm(half, 1, time.Millisecond); err != nil || len(all) != 500 {
			t.Errorf("storm: %d samples, %v", len(all), err)
		}
	})
}

func TestClose(t *testing.T) {
	closed := 0
	p := Path{Close: func() error { closed++; return errors.New("broken") }}
	if err := Close([]Path{p, {}, p}); err == nil || closed != 2 {
		t.Errorf("%d closed, %v", closed, err)
	}
}

func TestNoop(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		b, err := Noop(arch)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(b))
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		if f.Type != elf.ET_EXEC || len(f.Progs) != 2 || f.Progs[0].Flags&elf.PF_W != 0 || f.Progs[1].Flags&elf.PF_X != 0 ||
			f.Entry < f.Progs[0].Vaddr || f.Entry >= f.Progs[0].Vaddr+f.Progs[0].Filesz {
			t.Errorf("%s: %+v", arch, f.FileHeader)
		}
		if runtime.GOOS != "linux" || runtime.GOARCH != arch {
			continue
		}
		path := filepath.Join(t.TempDir(), "noop")
		if err := os.WriteFile(path, b, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := exec.Command(path).Run(); err != nil {
			t.Errorf("run: %v", err)
		}
	}
	if _, err := Noop("pdp11"); err == nil {
		t.Error("a program for a machine that we know nothing of")
	}
}
