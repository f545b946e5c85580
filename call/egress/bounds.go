package egress

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Bounds are what a call may have of a rule's hosts, within what it may have in all. A zero is no
// bound. Bounds can be compared with ==.
type Bounds struct {
	Rate        Rate          // of connections
	Open        int64         // connections at once
	Connections int64         // in all
	Sent        int64         // bytes that the program sends
	Received    int64         // bytes that it gets
	Time        time.Duration // of one connection
	// Of one request to an inspected host. A Rule has neither.
	Body   int64 // bytes of its body
	Answer int64 // bytes of its answer's
}

// The most that bounds can be, besides MaxRate: those of a call.
const (
	maxOpen        = 1 << 10
	maxConnections = 1 << 20
	maxBytes       = 1 << 50
	maxTime        = 24 * time.Hour
)

// The words of bounds, each with a colon behind it in a rule, in their order there. Those that the
// call has limits of, too, have the names of these.
const (
	boundRate        = "rate"
	boundOpen        = "open"
	boundConnections = "connections"
	boundSent        = "sent"
	boundReceived    = "received"
	boundTime        = "time"
	boundBody        = "body"
	boundAnswer      = "answer"
)

// unit is the end of a number, and what it stands for.
type unit struct {
	text string
	is   int64
}

var (
	noUnits = []unit{{"", 1}}
	sizes   = []unit{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}
	times   = []unit{{"h", int64(time.Hour)}, {"m", int64(time.Minute)}, {"s", int64(time.Second)}}
)

// number is a bound that is a number, in the largest of its units that divides it.
type number struct {
	word  string
	at    func(*Bounds) *int64
	most  int64
	units []unit
}

var numbers = []number{
	{boundOpen, func(b *Bounds) *int64 { return &b.Open }, maxOpen, noUnits},
	{boundConnections, func(b *Bounds) *int64 { return &b.Connections }, maxConnections, noUnits},
	{boundSent, func(b *Bounds) *int64 { return &b.Sent }, maxBytes, sizes},
	{boundReceived, func(b *Bounds) *int64 { return &b.Received }, maxBytes, sizes},
	{boundTime, func(b *Bounds) *int64 { return (*int64)(&b.Time) }, int64(maxTime), times},
	{boundBody, func(b *Bounds) *int64 { return &b.Body }, maxBytes, sizes},
	{boundAnswer, func(b *Bounds) *int64 { return &b.Answer }, maxBytes, sizes},
}

// text is the number n, "" for no bound.
func (x *number) text(n int64) string {
	for _, u := range x.units {
		if n > 0 && n%u.is == 0 {
			return strconv.FormatInt(n/u.is, 10) + u.text
		}
	}
	return ""
}

func (x *number) parse(text string) (int64, error) {
	for _, u := range x.units {
		digits, ok := strings.CutSuffix(text, u.text)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n < 1 || n > x.most/u.is || strconv.FormatInt(n, 10) != digits {
			break
		}
		return n * u.is, nil
	}
	example := x.text(x.most)
	return 0, fmt.Errorf("%s %q: want 1%s to %s", x.word, clip(text), x.units[len(x.units)-1].text, example)
}

// parse reads the word of one bound, "sent:10MiB", into b, which has none of that yet.
func (b *Bounds) parse(word string) error {
	name, text, _ := strings.Cut(word, ":")
	var was bool
	var err error
	if name == boundRate {
		was = b.Rate != (Rate{})
		b.Rate, err = ParseRate(text)
	} else {
		x := numberOf(name)
		if x == nil {
			return fmt.Errorf("%q bounds nothing", clip(word))
		}
		was = *x.at(b) != 0
		*x.at(b), err = x.parse(text)
	}
	if was {
		return fmt.Errorf("%s is there twice", name)
	}
	return err
}

func numberOf(word string) *number {
	for i := range numbers {
		if numbers[i].word == word {
			return &numbers[i]
		}
	}
	return nil
}

// isBound reports whether a word is meant as a bound.
func isBound(word string) bool {
	name, _, ok := strings.Cut(word, ":")
	return ok && name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_") == ""
}

// parseBounds reads words in any order.
func parseBounds(words []string) (b Bounds, err error) {
	for _, w := range words {
		if err := b.parse(w); err != nil {
			return Bounds{}, err
		}
	}
	return b, nil
}

// ofRequest is what b bounds of one request.
func (b Bounds) ofRequest() Bounds { return Bounds{Body: b.Body, Answer: b.Answer} }

// String returns the words of b, each behind a blank: " rate:10/s sent:10MiB".
func (b Bounds) String() (text string) {
	for _, w := range b.words() {
		text += " " + w
	}
	return text
}

func (b Bounds) words() (words []string) {
	if b.Rate != (Rate{}) {
		words = append(words, boundRate+":"+b.Rate.String())
	}
	for _, x := range numbers {
		if text := x.text(*x.at(&b)); text != "" {
			words = append(words, x.word+":"+text)
		}
	}
	return words
}

// Split returns b as bounds of one kind each, with their words, in the order of String.
func (b Bounds) Split() []Bound {
	var out []Bound
	for _, w := range b.words() {
		one, err := ParseBound(w)
		if err != nil {
			panic(fmt.Sprintf("egress: internal error: a bound: %v", err))
		}
		out = append(out, one)
	}
	return out
}

// Bound is a bound of one kind.
type Bound struct {
	Bounds        // one of which isn't zero
	Text   string // its word in a rule: "sent:10MiB"
}

// ParseBound reads the word of one bound, in its one spelling.
func ParseBound(word string) (Bound, error) {
	b, err := parseBounds([]string{word})
	if err == nil && b.String() != " "+word {
		err = fmt.Errorf("bound %q: want%s", clip(word), b)
	}
	if err != nil {
		return Bound{}, err
	}
	return Bound{b, word}, nil
}

// String says what the bound is of, for a sentence about a rule: "its rule's rate of 10/s".
func (b Bound) String() string {
	name, text, _ := strings.Cut(b.Text, ":")
	if b.Sent+b.Received+b.Body+b.Answer > 0 && !strings.HasSuffix(text, "B") {
		text += " bytes"
	}
	switch name {
	case boundRate:
		return "its rule's rate of " + text
	case boundOpen:
		return "the " + text + " connections that its rule lets it have at once"
	case boundConnections:
		return "the " + text + " connections that its rule lets it make"
	case boundSent:
		return "the " + text + " that its rule lets it send"
	case boundReceived:
		return "the " + text + " that its rule lets it get"
	case boundTime:
		return "the " + text + " that its rule lets a connection last"
	case boundBody:
		return "the " + text + " that its rule lets a request's body have"
	case boundAnswer:
		return "the " + text + " that its rule lets an answer have"
	}
	return ""
}

// tighter returns the narrower of each bound of b and o.
func (b Bounds) tighter(o Bounds) Bounds {
	if o.Rate.slower(b.Rate) < 0 {
		b.Rate = o.Rate
	}
	for _, x := range numbers {
		if n := *x.at(&o); n > 0 {
			*x.at(&b) = min(n, cmp.Or(*x.at(&b), n))
		}
	}
	return b
}

// within reports whether b lets nothing through that o doesn't.
func (b Bounds) within(o Bounds) bool {
	for _, x := range numbers {
		if most, n := *x.at(&o), *x.at(&b); most > 0 && (n == 0 || n > most) {
			return false
		}
	}
	return b.Rate.within(o.Rate)
}
