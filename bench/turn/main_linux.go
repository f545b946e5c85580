// Command turn measures a turn of a model through palyrad beside a client of one's own.
//
//	make build && go run ./bench/turn                     # about two minutes
//	go run ./bench/turn -samples 200 -rtt 0 -only egress,kept
//
// The model is a server here, which says -tokens pieces of text -every apart, over TLS with a
// certificate of its own authority. It is asked by a client of net/http that keeps its connection,
// by one that makes each anew, and by model.turn in a cell of a real palyrad, whose palyra-egress
// puts the key in. model.turn is also asked a scripted model, which reaches nothing. A call that
// policy denies and one of /bin/true say what any call takes. The paths take turns in a new order
// each round.
//
// Each piece of text is the time at which the server wrote it. *First* is from the question to the
// first piece, *late* what a piece took from the server to the reader, *whole* the time from the
// question to the end, without the server's own pauses, in ms. Of palyrad the reader is one of
// the run's output, over the socket. *Processor* is what palyrad, its helpers and its cells took of
// a processor for a turn and what they do behind it, in the mean: a busy host changes it least.
//
// With -rtt, paths that end in "far" lead through a proxy that hands each byte on half of that
// later, and a connection's first ones after a whole one more, which is what its making takes.
//
// It says nothing about other machines, nor about slow start and loss on real ways.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"palyra/bench/measure"
)

func main() {
	bin := flag.String("bin", "bin", "`folder` of palyra, palyrad and their helpers")
	samples := flag.Int("samples", 100, "counted turns of each path")
	gap := flag.Duration("gap", 50*time.Millisecond, "pause before each turn")
	rtt := flag.Duration("rtt", 30*time.Millisecond, "round trip of the paths that are far; 0: there are none")
	tokens := flag.Int("tokens", 20, "pieces of text in an answer")
	every := flag.Duration("every", time.Millisecond, "pause of the server between them")
	size := flag.Int("size", 16<<10, "bytes of the question")
	only := flag.String("only", "", "only paths with one of these words, comma-separated")
	flag.Parse()
	if flag.NArg() > 0 || *samples < 1 || *tokens < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *bin, *samples, *gap, &world{rtt: *rtt, tokens: *tokens, every: *every, size: *size}, *only); err != nil {
		fmt.Fprintln(os.Stderr, "turn:", err)
		os.Exit(1)
	}
}

// turn is one that was measured.
type turn struct {
	first, whole time.Duration
	late         []time.Duration
}

// path is a way to ask the model. It returns when the answer has come to its end.
type path struct {
	name string
	ask  func(context.Context) (turn, error)
}

func run(ctx context.Context, bin string, samples int, gap time.Duration, w *world, only string) (err error) {
	if bin, err = filepath.Abs(bin); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(bin, "palyrad")); err != nil {
		return fmt.Errorf("%w\nhint: make build", err)
	}
	dir, err := os.MkdirTemp("/var/tmp", "palyra-turn-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // palyra-egress isn't root
		return err
	}
	if err := w.begin(dir); err != nil {
		return err
	}
	defer w.end()
	d, err := startDaemon(ctx, bin, dir, w)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	paths := append(w.bare(), d.paths()...)
	paths = slices.DeleteFunc(paths, func(p path) bool {
		return only != "" && !slices.ContainsFunc(strings.Split(only, ","), func(word string) bool { return strings.Contains(p.name, word) })
	})
	const warm = 5
	turns, work := make([][]turn, len(paths)), make([]time.Duration, len(paths))
	last, before := -1, d.processor() // the path that was asked last
	for round := range samples + warm {
		for i := range paths {
			i = (i + round) % len(paths)
			select {
			case <-time.After(gap):
			case <-ctx.Done():
				return ctx.Err()
			}
			now := d.processor()
			if last >= 0 {
				work[last] += now - before
			}
			last, before = -1, now
			t, err := paths[i].ask(ctx)
			if errors.Is(err, errAgain) {
				continue
			}
			if err != nil {
				return fmt.Errorf("%s: %w", paths[i].name, err)
			}
			if len(t.late) > 0 { // a server's, with its pauses
				t.whole -= time.Duration(w.tokens-1) * w.every
			}
			if round >= warm {
				turns[i] = append(turns[i], t)
				last = i
			}
		}
	}
	print(paths, turns, work)
	load, err := os.ReadFile("/proc/loadavg")
	fmt.Printf("\n%s/%s, %d processors, %s, %d turns of each; %d pieces %v apart; load %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), samples, w.tokens, w.every, load)
	return err
}

func print(paths []path, turns [][]turn, work []time.Duration) {
	t := measure.Table{Title: "A turn of a model, in ms", Left: 1, Head: []string{"path", "first p50", "p95", "late p50", "p95", "most", "whole p50", "p95", "processor"}}
	for i, p := range paths {
		var first, late, most, whole []time.Duration
		for _, one := range turns[i] {
			first, whole, late = append(first, one.first), append(whole, one.whole), append(late, one.late...)
			if len(one.late) > 0 {
				most = append(most, slices.Max(one.late))
			}
		}
		t.Rows = append(t.Rows, []string{p.name, ms(first, .5), ms(first, .95), ms(late, .5), ms(late, .95), ms(most, .5), ms(whole, .5), ms(whole, .95), fmt.Sprintf("%.1f", work[i].Seconds()*1e3/float64(len(turns[i])))})
	}
	t.Text(os.Stdout)
}

// ms returns the share q of all samples in ms, "–" for none.
func ms(d []time.Duration, q float64) string {
	if len(d) == 0 {
		return "–"
	}
	slices.Sort(d)
	return fmt.Sprintf("%.2f", d[min(int(q*float64(len(d))), len(d)-1)].Seconds()*1e3)
}
