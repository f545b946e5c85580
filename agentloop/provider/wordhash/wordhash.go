// Package wordhash makes vectors of texts without a model: sums of hashes of their words and of the
// words' parts. The scripted provider answers with them, and memory compares by them where no
// provider's are configured.
//
//	v := wordhash.Vector(wordhash.Words("Releases are built by make dist"), 64)
//
// The same words give the same vector, everywhere and always.
//
// # What it does not protect against
//
// It knows no meanings: other forms of a word and spelling mistakes are alike, and so are texts
// whose words happen to have the same hashes.
package wordhash

import (
	"hash/fnv"
	"math"
	"strings"
	"unicode"
)

// Name names how the vectors are made.
const Name = "hash-embedding-v1"

// Dimensions are those of a vector where none are asked for.
const Dimensions = 64

// Vector returns the vector of a text's words, of length 1; zero without words.
func Vector(words []string, dims int) []float64 {
	sum := make([]float64, dims)
	add := func(s string, weight float64) {
		h := fnv.New64a()
		_, _ = h.Write([]byte(s)) // never fails
		x := h.Sum64()
		x ^= x >> 33 // FNV's last byte moves its low bits alone
		x *= 0xff51afd7ed558ccd
		x ^= x >> 33
		if x>>63 == 1 {
			weight = -weight
		}
		sum[x%uint64(dims)] += weight
	}
	for _, w := range words {
		add(w, 1)
		padded := []rune("^" + w + "$")
		for i := 0; i+3 <= len(padded); i++ {
			add(string(padded[i:i+3]), 0.5)
		}
	}
	var norm float64
	for _, x := range sum {
		norm += x * x
	}
	if norm == 0 {
		return sum
	}
	norm = math.Sqrt(norm)
	for i := range sum {
		sum[i] /= norm
	}
	return sum
}

// maxWord bounds a word, in bytes: what is longer is cut.
const maxWord = 64

// Words returns the words of a text in lower case, as often as they come.
func Words(text string) []string {
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) && !unicode.IsMark(r) })
	for i, w := range words {
		if len(w) > maxWord {
			words[i] = strings.ToValidUTF8(w[:maxWord], "")
		}
	}
	return words
}
