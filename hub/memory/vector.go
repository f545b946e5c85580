package memory

import (
	"math"
	"slices"
	"strings"

	"palyra/agentloop/provider/wordhash"
)

// Embedding names how texts become vectors. It's a fallback without a model.
const Embedding = wordhash.Name

// dims are the dimensions of a vector.
const dims = wordhash.Dimensions

// vector is a vector of length 1, in 127ths.
type vector [dims]int8

// embed returns the vector of a text's words, zero without words.
func embed(words []string) (v vector) {
	for i, x := range wordhash.Vector(words, dims) {
		v[i] = int8(math.Round(127 * x))
	}
	return v
}

// likeness is the cosine of two vectors, 0 for less.
func (v *vector) likeness(o *vector) float64 {
	var sum int32
	for i := range v {
		sum += int32(v[i]) * int32(o[i])
	}
	return max(0, min(1, float64(sum)/(127*127)))
}

// fold takes the ending of an English plural from each word that has one, by Harman's S stemmer
// (1991), so that "release" finds "releases".
func fold(words []string) {
	ends := func(w string, with string, but ...string) bool {
		return strings.HasSuffix(w, with) && !slices.ContainsFunc(but, func(b string) bool { return strings.HasSuffix(w, b) })
	}
	for i, w := range words {
		switch {
		case len(w) < 4:
		case ends(w, "ies", "eies", "aies"):
			words[i] = w[:len(w)-3] + "y"
		case ends(w, "es", "aes", "ees", "oes"):
			words[i] = w[:len(w)-1]
		case ends(w, "s", "us", "ss"):
			words[i] = w[:len(w)-1]
		}
	}
}

// common are words of English questions that tell no item from another.
var common = strings.Fields("a an and are as at be been but by can did do does for from had has have how i if in into is it its me my no not of on or our " +
	"please should so than that the their them then there these they this those to us was we were what when where which who why will with would you your")

// telling returns the words of a query without common ones, or all if there are no others.
func telling(words []string) []string {
	out := slices.DeleteFunc(slices.Clone(words), func(w string) bool {
		_, found := slices.BinarySearch(common, w)
		return found
	})
	if len(out) == 0 {
		return slices.Clone(words)
	}
	return out
}
