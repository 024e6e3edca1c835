package section

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestASectionIsReplacedAndTheRestStays(t *testing.T) {
	const page = "# Page\n\n## One\n\nfirst\n\n" + Heading + "\nold\n\n| a | b |\n\n## Last\n\nend\n"
	require.Equal(t, "old\n\n| a | b |\n", Of(page))
	changed := Replace(page, "\nnew\n")
	require.Equal(t,
		"# Page\n\n## One\n\nfirst\n\n"+Heading+"\nnew\n\n## Last\n\nend\n", changed)
	require.Equal(t, changed, Replace(changed, Of(changed)))
}

func TestAPageWithoutTheSectionGetsItAtTheEnd(t *testing.T) {
	require.Empty(t, Of("# Page\n"))
	require.Equal(t, "# Page\n\n"+Heading+"\nnew\n", Replace("# Page\n", "new"))
}
