package sample

import (
	"flag"
	"fmt"
	"slices"
	"testing"
)

func TestSample(t *testing.T) {
	was := testing.Short()
	defer func() { flag.Set("test.short", fmt.Sprint(was)) }()
	names := []string{"begin 1", "write 1", "sync 1", "rename", "mark 1", "begin 2", "write 2", "mark 2", "end"}
	for _, c := range []struct {
		short string
		of    int
		steps []int
	}{
		{"true", 3, []int{0, 7}}, // begin 1, mark 2
		{"false", 9, []int{0, 1, 2, 3, 4, 5, 6, 7, 8}},
	} {
		if err := flag.Set("test.short", c.short); err != nil {
			t.Fatal(err)
		}
		if n, steps := Of(3, 9), Steps(names); n != c.of || !slices.Equal(steps, c.steps) {
			t.Errorf("short %s: %d and %d, want %d and %d", c.short, n, steps, c.of, c.steps)
		}
	}
	if got := Steps(nil); got != nil {
		t.Errorf("of nothing %d", got)
	}
}
