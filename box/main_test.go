package box_test

import (
	"testing"

	"go.uber.org/goleak"
)

// No goroutine of this package outlives what it was for.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
