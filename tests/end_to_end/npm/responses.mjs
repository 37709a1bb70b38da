// OpenAI's own client on the Responses API, by its environment variables. MESSAGES: prints one line of JSON.
import OpenAI from 'openai';
import { zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const [said] = process.argv.slice(2);
const client = new OpenAI({ maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const input = JSON.parse(said);
const greedy = { model, input, temperature: 0 };
const tools = [
  {
    type: 'function',
    name: 'get_weather',
    description: 'The weather in a city.',
    strict: true,
    parameters: {
      type: 'object',
      properties: { city: { enum: ['Paris'] }, unit: { enum: ['C'] } },
      required: ['city', 'unit'],
      additionalProperties: false,
    },
  },
];

const whole = await client.responses.create({ ...greedy, max_output_tokens: 12 });

// The helper makes events of its own from those of the stream, and accumulates the response.
let streamed = '';
const events = new Set();
const stream = client.responses.stream({ ...greedy, max_output_tokens: 12 });
stream.on('event', (event) => events.add(event.type));
stream.on('response.output_text.delta', (event) => (streamed += event.delta));
const final = await stream.finalResponse();

const parsed = await client.responses.parse({
  ...greedy,
  text: { format: zodTextFormat(z.object({ verdict: z.enum(['yes']), count: z.enum(['three']) }), 'verdict') },
});

const calling = client.responses.stream({ ...greedy, tools, tool_choice: 'required' });
let snapshot = '';
calling.on('response.function_call_arguments.delta', (event) => (snapshot = event.snapshot));
const called = await calling.finalResponse();
const call = called.output.find((item) => item.type === 'function_call');

// The call and its result go back as they came.
const answered = await client.responses.create({
  ...greedy,
  max_output_tokens: 12,
  tools,
  tool_choice: 'none',
  input: [...input, ...called.output, { type: 'function_call_output', call_id: call.call_id, output: '18 C, rain' }],
});

const refused = await client.responses.create({ ...greedy, temperature: 'hot' }).catch((error) => error);

console.log(
  JSON.stringify({
    whole: whole.output_text,
    streamed,
    events: [...events],
    end: [final.output_text, final.status, final.incomplete_details?.reason, final.usage.output_tokens],
    parsed: parsed.output_parsed,
    call: [call.name, JSON.parse(call.arguments)],
    snapshot: JSON.parse(snapshot),
    answered: answered.output_text,
    refused: [refused.constructor.name, refused.status, refused.param],
  }),
);
