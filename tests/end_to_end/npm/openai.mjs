// OpenAI's own client, by its environment variables. MESSAGES: prints one line of JSON.
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const [said] = process.argv.slice(2);
const client = new OpenAI({ maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const greedy = { model, messages: JSON.parse(said), temperature: 0 };

const whole = await client.chat.completions.create({ ...greedy, max_completion_tokens: 12 });

let streamed = '';
const stream = await client.chat.completions.create({
  ...greedy,
  max_completion_tokens: 12,
  stream: true,
  stream_options: { include_usage: true },
});
let usage;
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta.content ?? '';
  usage = chunk.usage ?? usage;
}

const parsed = await client.chat.completions.parse({
  ...greedy,
  response_format: zodResponseFormat(z.object({ verdict: z.enum(['yes']), count: z.enum(['three']) }), 'verdict'),
});

// The helper calls the function itself, and accumulates the calls of the streamed chunks.
const called = [];
const runner = client.chat.completions.runTools({
  ...greedy,
  stream: true,
  tool_choice: { type: 'function', function: { name: 'get_weather' } },
  tools: [
    {
      type: 'function',
      function: {
        name: 'get_weather',
        description: 'The weather in a city.',
        parameters: {
          type: 'object',
          properties: { city: { enum: ['Paris'] }, unit: { enum: ['C'] } },
          required: ['city', 'unit'],
          additionalProperties: false,
        },
        parse: JSON.parse,
        function: (input) => {
          called.push(input);
          return '18 C, rain';
        },
      },
    },
  ],
});
await runner.done();
const result = runner.messages.at(-1);

// The client asks for base64 by itself, and decodes it.
const embedded = await client.embeddings.create({ model, input: ['hello', 'goodbye'] });

const refused = await client.chat.completions.create({ ...greedy, temperature: 'hot' }).catch((error) => error);

console.log(
  JSON.stringify({
    whole: whole.choices[0].message.content,
    streamed,
    usage,
    parsed: parsed.choices[0].message.parsed,
    called,
    result: { role: result.role, content: result.content },
    dimensions: embedded.data.map((item) => item.embedding.length),
    refused: [refused.constructor.name, refused.status, refused.param],
  }),
);
