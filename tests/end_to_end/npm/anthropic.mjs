// Anthropic's own client, by its environment variables. MESSAGES: prints one line of JSON.
import Anthropic from '@anthropic-ai/sdk';
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod';
import { z } from 'zod';

const [said] = process.argv.slice(2);
const client = new Anthropic({ maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const greedy = { model, messages: JSON.parse(said), temperature: 0, max_tokens: 100 };
const tools = [
  {
    name: 'get_weather',
    description: 'The weather in a city.',
    input_schema: {
      type: 'object',
      properties: { city: { enum: ['Paris'] }, unit: { enum: ['C'] } },
      required: ['city', 'unit'],
      additionalProperties: false,
    },
  },
];

const whole = await client.messages.create({ ...greedy, max_tokens: 12 });

// The helper makes events of its own from those of the stream.
const stream = client.messages.stream({ ...greedy, max_tokens: 12 });
let streamed = '';
const events = [];
stream.on('text', (delta) => (streamed += delta));
stream.on('streamEvent', (event) => events.push(event.type));
const message = await stream.finalMessage();

const inputs = [];
const calling = client.messages.stream({ ...greedy, tools, tool_choice: { type: 'any' } });
calling.on('inputJson', (_, snapshot) => inputs.push(snapshot));
const called = await calling.finalMessage();
const call = called.content.at(-1);

const parsed = await client.messages.parse({
  ...greedy,
  output_config: { format: zodOutputFormat(z.object({ verdict: z.enum(['yes']), count: z.enum(['three']) })) },
});

const counted = await client.messages.countTokens({ model, messages: greedy.messages });
const refused = await client.messages.create({ ...greedy, temperature: 'hot' }).catch((error) => error);

console.log(
  JSON.stringify({
    whole: whole.content[0].text,
    streamed,
    events: [...new Set(events)],
    end: [message.content[0].text, message.stop_reason, message.usage.output_tokens],
    call: [called.stop_reason, call.type, call.name, call.input],
    inputs: inputs.length,
    parsed: parsed.parsed_output,
    tokens: [counted.input_tokens, whole.usage.input_tokens + whole.usage.cache_read_input_tokens],
    refused: [refused.constructor.name, refused.status, refused.error?.error?.type],
  }),
);
