package boxdir

import "math/rand/v2"

// madeUpName returns a name such as "calm-otter" for a box that got none.
func madeUpName() string {
	return moods[rand.IntN(len(moods))] + "-" + animals[rand.IntN(len(animals))] + "-" + newID()[:3]
}

var moods = []string{
	"able", "bold", "brisk", "calm", "civil", "clear", "cosy", "deft", "eager", "fair", "fond", "frank", "glad",
	"grand", "happy", "hardy", "jolly", "keen", "kind", "lively", "lucid", "mellow", "merry", "mild", "neat",
	"nimble", "patient", "placid", "plain", "plucky", "polite", "quick", "quiet", "ready", "sober", "solid",
	"steady", "sunny", "tidy", "warm", "witty", "zesty",
}

var animals = []string{
	"badger", "beaver", "bison", "cony", "crane", "dormouse", "egret", "ferret", "finch", "gecko", "hare", "heron",
	"ibex", "jackdaw", "kestrel", "lark", "lemming", "lynx", "marmot", "marten", "mole", "newt", "otter", "owl",
	"pika", "plover", "quail", "rabbit", "raven", "robin", "seal", "shrew", "stoat", "swift", "tapir", "teal",
	"toad", "vole", "weasel", "wren",
}
