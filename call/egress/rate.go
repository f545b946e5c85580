package egress

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// MaxRate is the most that a rate can have in its second or minute.
const MaxRate = 10_000

// Rate bounds how fast connections to a host are made: N at once, and then N more in each Per. The
// zero Rate is no bound. Rates can be compared with ==.
type Rate struct {
	N   int
	Per time.Duration // a second or a minute
}

// ParseRate reads "10/s" or "600/m".
func ParseRate(text string) (Rate, error) {
	number, unit, _ := strings.Cut(text, "/")
	n, err := strconv.Atoi(number)
	r := Rate{N: n}
	switch unit {
	case "s":
		r.Per = time.Second
	case "m":
		r.Per = time.Minute
	}
	if err != nil || n < 1 || n > MaxRate || r.String() != text {
		return Rate{}, fmt.Errorf("rate %q: want 1 to %d a second or minute: 10/s, 600/m", clip(text), MaxRate)
	}
	return r, nil
}

// String returns the text that ParseRate reads as r, "" for no bound.
func (r Rate) String() string {
	unit := "s"
	switch r.Per {
	case 0:
		return ""
	case time.Minute:
		unit = "m"
	}
	return strconv.Itoa(r.N) + "/" + unit
}

// slower is negative if r lets fewer connections through than o. No bound is the fastest.
func (r Rate) slower(o Rate) int {
	switch {
	case r == o:
		return 0
	case r.N == 0:
		return 1
	case o.N == 0:
		return -1
	}
	return cmp.Or(cmp.Compare(int64(r.N)*int64(o.Per), int64(o.N)*int64(r.Per)), cmp.Compare(r.N, o.N))
}

// within reports whether r lets nothing through that o doesn't: it has no more at once, and no more
// in each time.
func (r Rate) within(o Rate) bool {
	return o.N == 0 || r.N != 0 && r.N <= o.N && int64(r.N)*int64(o.Per) <= int64(o.N)*int64(r.Per)
}
