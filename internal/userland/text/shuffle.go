package text

import "math/rand/v2"

func shuffle(l [][]byte) { rand.Shuffle(len(l), func(i, j int) { l[i], l[j] = l[j], l[i] }) }
