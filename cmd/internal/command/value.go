package command

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// MaxDuration bounds every duration flag. A call that may take longer than a
// day is a service, not a call.
const MaxDuration = 24 * time.Hour

// units are powers of 1024 whichever way they are spelt; KB and the like are
// refused because half the world reads them as powers of 1000.
var units = []struct {
	suffix string
	shift  uint
}{
	{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40},
	{"K", 10}, {"M", 20}, {"G", 30}, {"T", 40}, {"B", 0},
}

// ParseSize reads a number of bytes: "512", "64M", "1GiB". It refuses zero, signs,
// fractions, spaces, leading zeros and numbers that don't fit in an int64.
func ParseSize(s string) (int64, error) {
	digits, shift := s, uint(0)
	for _, u := range units {
		if d, ok := strings.CutSuffix(s, u.suffix); ok {
			digits, shift = d, u.shift
			break
		}
	}
	n, err := parseDigits(digits)
	if errors.Is(err, strconv.ErrRange) || (err == nil && n > math.MaxInt64>>shift) {
		return 0, fmt.Errorf("size %q is too large", s)
	}
	if err != nil {
		return 0, fmt.Errorf("size %q: want digits and one of B, K, M, G, T, KiB, MiB, GiB, TiB, such as 64M", s)
	}
	if n == 0 {
		return 0, fmt.Errorf("size %q: must be above zero", s)
	}
	return n << shift, nil
}

// ParseCount reads a number from 1 to max.
func ParseCount(s string, max int64) (int64, error) {
	n, err := parseDigits(s)
	if err != nil || n < 1 || n > max {
		return 0, fmt.Errorf("count %q: want a whole number from 1 to %d", s, max)
	}
	return n, nil
}

// parseDigits reads decimal digits without sign or leading zero.
func parseDigits(s string) (int64, error) {
	if s == "" || strings.Trim(s, "0123456789") != "" || (len(s) > 1 && s[0] == '0') {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseInt(s, 10, 64)
}

// ParseDuration reads a duration such as "1.5s", "200ms" or "1m30s", from one
// millisecond to MaxDuration.
func ParseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil || strings.ContainsAny(s, "+"):
		return 0, fmt.Errorf("duration %q: want a number with a unit, such as 1.5s, 200ms or 2m", s)
	case d < time.Millisecond:
		return 0, fmt.Errorf("duration %q: must be at least 1ms", s)
	case d > MaxDuration:
		return 0, fmt.Errorf("duration %q: must be at most %s", s, MaxDuration)
	}
	return d, nil
}

// ParseEnv checks "NAME=VALUE". The name is a letter or underscore followed by letters,
// digits and underscores: every shell can set it.
func ParseEnv(s string) (string, error) {
	name, _, ok := strings.Cut(s, "=")
	if !ok {
		// The word may be a secret that lost its name: do not repeat it.
		return "", errors.New("want NAME=VALUE: there is no =")
	}
	valid := name != ""
	for i, r := range name {
		letter := r == '_' || (r >= 'a' && r <= 'z') || (r >= 'A' && r <= 'Z')
		if !letter && (i == 0 || r < '0' || r > '9') {
			valid = false
		}
	}
	if !valid {
		return "", fmt.Errorf("environment name %q: want letters, digits and underscores", name)
	}
	if strings.ContainsRune(s, 0) {
		return "", fmt.Errorf("environment value of %s holds a NUL byte", name)
	}
	return s, nil
}

// Size, Duration, Count and Env adapt the parsers to Flag.Parse.
func Size(s string) (any, error) { return ParseSize(s) }

// Duration is ParseDuration for Flag.Parse.
func Duration(s string) (any, error) { return ParseDuration(s) }

// Env is ParseEnv for Flag.Parse.
func Env(s string) (any, error) { return ParseEnv(s) }

// Count returns a Flag.Parse for a number from 1 to max.
func Count(max int64) func(string) (any, error) {
	return func(s string) (any, error) { return ParseCount(s, max) }
}
