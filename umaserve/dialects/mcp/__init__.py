"""Server of the Model Context Protocol: tools for other agents, over its streamable HTTP transport."""
