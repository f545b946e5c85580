package planted

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// BenchmarkLook is what a call with a writable workspace pays: folders of 20
// files, none of which the call changed, in memory.
//
//	go test ./kernel/internal/planted -run xxx -bench Look
func BenchmarkLook(b *testing.B) {
	for _, files := range []int{0, 100, 1_000, 10_000, 100_000} {
		s := newSite(b)
		for i := range files {
			dir := s.at(fmt.Sprintf("d%02d/e%03d", i/20%100, i/2000))
			if i%20 == 0 {
				s.must(os.MkdirAll(dir, 0o755))
			}
			s.must(os.WriteFile(fmt.Sprintf("%s/f%06d", dir, i), nil, 0o644))
		}
		for _, dir := range []string{".git/hooks", ".vscode", ".github/workflows"} {
			s.must(os.MkdirAll(s.at(dir), 0o755))
		}
		l := s.begin()
		for _, lim := range []Limits{{}, {Entries: 1 << 20, Time: time.Hour}} {
			if files <= 10_000 && lim.Entries != 0 {
				continue
			}
			name := fmt.Sprintf("files=%d", files)
			if lim.Entries != 0 {
				name += "/unbounded"
			}
			b.Run(name, func(b *testing.B) {
				looked := int64(0)
				for b.Loop() {
					looked = Begin(l.dir).End(true, lim).Looked
				}
				b.ReportMetric(float64(looked), "looked/op")
			})
		}
	}
}

// BenchmarkBegin is the part before the program starts.
func BenchmarkBegin(b *testing.B) {
	s := newSite(b)
	for _, dir := range []string{".git/hooks", ".vscode", ".github/workflows", ".claude"} {
		s.must(os.MkdirAll(s.at(dir), 0o755))
	}
	l := s.begin()
	for b.Loop() {
		Begin(l.dir)
	}
}
