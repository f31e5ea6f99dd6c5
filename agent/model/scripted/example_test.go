package scripted_test

import (
	"context"
	"fmt"
	"log"

	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
)

// A script is the model's side of a conversation, in a file or at hand.
func ExampleParse() {
	m, err := scripted.Parse("demo", []byte(`{"steps": [{"text": "hello"}, {"text": "hello again"}]}`))
	if err != nil {
		log.Fatal(err)
	}
	res, err := m.Generate(context.Background(), &model.Request{
		Messages: []model.Message{{Kind: model.KindRequest, Parts: []model.Part{model.UserText("hi")}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Name(), res.Text())
	// Output: scripted:demo hello
}
