package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a time span, written as Go writes it: "90s", "5m", "1h30m".
type Duration time.Duration

// Std returns d as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String returns the shortest form that reads back: "5m", not "5m0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func parseDuration(s string) (Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || s == "0" || strings.HasPrefix(s, "+") {
		return 0, errors.New(`is no duration such as "90s" or "5m"`)
	}
	return Duration(d), nil
}

// Size is a number of bytes.
type Size int64

var units = []struct {
	suffix string
	bytes  int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// String returns the size in the largest unit that divides it.
func (s Size) String() string {
	for _, u := range units {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// MarshalText implements encoding.TextMarshaler.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func parseSize(text string) (Size, error) {
	bad := errors.New(`is no size such as 4096, "64KiB" or "16MiB"`)
	digits, scale := text, int64(1)
	for _, u := range units {
		if d, ok := strings.CutSuffix(text, u.suffix); ok {
			digits, scale = d, u.bytes
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63) // no sign, no space
	if err != nil || int64(n) > math.MaxInt64/scale {
		return 0, bad
	}
	return Size(int64(n) * scale), nil
}

// List is several texts, in order. No element has a control character.
type List []string

// String returns the list as TOML writes it.
func (l List) String() string {
	var out []string
	for _, s := range l {
		out = append(out, strconv.Quote(s))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// Mode is the permission bits of a file.
type Mode uint32

// String returns four octal digits.
func (m Mode) String() string { return fmt.Sprintf("%04o", uint32(m)) }

// MarshalText implements encoding.TextMarshaler.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

func parseMode(s string) (Mode, error) {
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || len(s) < 3 || len(s) > 4 || n > 0o777 {
		return 0, errors.New(`is no octal mode such as "0660"`)
	}
	return Mode(n), nil
}
