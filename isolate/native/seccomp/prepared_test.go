package seccomp

import (
	"bytes"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"palyra/isolate/tier"
)

var update = flag.Bool("update", false, "write the programs that are compiled ahead instead of comparing them")

// TestPrepared holds every byte of what is compiled ahead to the compiler, and
// what is made of it for a cookie to what the compiler makes with that cookie.
func TestPrepared(t *testing.T) {
	cookies := []uint64{preparedCookie, 1, 7, 1 << 32, 0x00000001_00000001, ^uint64(0), 0x40000000_c000003e, 0x7f4a7c15_9e3779b9}
	for range 200 {
		cookies = append(cookies, rand.Uint64()|1)
	}
	for _, a := range arches {
		file := filepath.Join("prepared", a.String())
		want, err := prepare(a)
		if err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(file, want, 0o644); err != nil {
				t.Fatal(err)
			}
			t.Log("wrote", file, "- build again to test it")
			continue
		}
		embedded := map[Arch]string{AMD64: preparedAMD64, ARM64: preparedARM64}[a]
		if !bytes.Equal([]byte(embedded), want) {
			i := 0
			for i < min(len(embedded), len(want)) && embedded[i] == want[i] {
				i++
			}
			t.Errorf("%s is stale from byte %d of %d on (want %d bytes): review the rules, then go test ./isolate/native/seccomp -run Prepared -update", file, i, len(embedded), len(want))
			continue
		}
		for i, o := range preparedFor {
			plain, err := Compile(Cell(o), a)
			if err != nil {
				t.Fatal(err)
			}
			for _, o.ExecCookie = range cookies {
				want, err := Compile(Cell(o), a)
				if err != nil {
					t.Fatal(err)
				}
				got, policy, ok := prepared(o, a)
				if !ok || !bytes.Equal(got.Bytes(), want.Bytes()) || policy != plain.Digest() {
					t.Fatalf("%s, options %d, cookie %#x: found %t, digest %s of policy %s, want %s of %s", a, i, o.ExecCookie, ok, got.Digest(), policy, want.Digest(), plain.Digest())
				}
			}
		}
	}
}

// TestPreparedCookie: exactly two instructions of a program are the cookie's.
func TestPreparedCookie(t *testing.T) {
	for _, a := range arches {
		for _, o := range preparedFor {
			o.ExecCookie = preparedCookie
			f, err := Compile(Cell(o), a)
			if err != nil {
				t.Fatal(err)
			}
			o.ExecCookie ^= ^uint64(0)
			other, err := Compile(Cell(o), a)
			if err != nil {
				t.Fatal(err)
			}
			var differ []uint32
			for i, x := range f.Instrs() {
				if x != other.Instrs()[i] {
					differ = append(differ, x.K)
				}
			}
			slices.Sort(differ)
			halves := []uint32{preparedCookie & 0xffffffff, preparedCookie >> 32}
			slices.Sort(halves)
			if !slices.Equal(differ, halves) {
				t.Errorf("%s %+v: %x differ, want %x", a, o, differ, halves)
			}
			for _, h := range halves {
				if n := len(slices.DeleteFunc(f.Instrs(), func(x Instr) bool { return x.K != h })); n != 1 {
					t.Errorf("%s %+v: %d instructions with %#x, want 1", a, o, n, h)
				}
			}
		}
	}
}

// TestForCell: every variant, prepared or not, is what the compiler makes.
func TestForCell(t *testing.T) {
	found := 0
	for _, o := range []Options{
		{Tier: tier.B}, {Tier: tier.B, AllowUnix: true}, {Tier: tier.B, NoPair: true}, {Tier: tier.B, AllowPathMetadata: true},
		{Tier: tier.B, ReadOnly: true}, {Tier: tier.C, ReadOnly: true},
		{Tier: tier.C}, {Tier: tier.C, AllowInet: true}, {Tier: tier.C, AllowUnix: true}, {Tier: tier.C, NoPair: true},
		{Tier: tier.C, AllowInet: true, AllowUnix: true}, {Tier: tier.C, AllowUncounted: true},
		{Tier: tier.C, AllowUnix: true, AllowUncounted: true, AllowShared: true, AllowIPC: true},
		{Tier: tier.C, AllowShared: true, AllowIPC: true}, {Tier: tier.C, AllowIPC: true}, {Tier: tier.B, AllowShared: true, AllowIPC: true},
	} {
		for _, a := range arches {
			for _, o.ExecCookie = range []uint64{0, 0xfedcba9876543210} {
				if _, _, ok := prepared(o, a); ok {
					found++
				}
				got, policy, err := ForCell(o, a)
				want, werr := Compile(Cell(o), a)
				plain := o
				plain.ExecCookie = 0
				p, perr := Compile(Cell(plain), a)
				if err != nil || werr != nil || perr != nil || !bytes.Equal(got.Bytes(), want.Bytes()) || policy != p.Digest() {
					t.Errorf("%s %+v: got %s of policy %s (%v), want %s of %s", a, o, got.Digest(), policy, err, want.Digest(), p.Digest())
				}
			}
		}
	}
	if want := 12 * len(arches); found != want { // those that cells are made with, each with a cookie
		t.Errorf("%d were compiled ahead, want %d", found, want)
	}
	if _, _, err := ForCell(Options{Tier: tier.C, ExecCookie: 1}, 0); err == nil {
		t.Error("a filter for no architecture")
	}
}

func BenchmarkForCell(b *testing.B) {
	for b.Loop() {
		if _, _, err := ForCell(Options{Tier: tier.C, AllowUnix: true, ExecCookie: 7}, AMD64); err != nil {
			b.Fatal(err)
		}
	}
}
